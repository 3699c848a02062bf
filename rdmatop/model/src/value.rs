//! A number and where it came from.

use std::{ops::Deref, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

/// Where a value comes from; a later one says less than an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Counted or seen by our eBPF programs: exact since attach.
    Ebpf,
    /// Counted by our probes on the program that posts: work requests that its provider accepted, exact since
    /// the probes were attached.
    Uprobe,
    /// Counted by the NIC for the QPs that the kernel has bound to a counter: packets with headers, exact
    /// since they were bound.
    Hw,
    /// Counted by the port that no other process can have used: packets with headers.
    Port,
    /// RDMA netlink (nldev).
    Netlink,
    /// A file under /sys.
    Sysfs,
    /// The driver of a network device, as `ethtool -S` prints it.
    Ethtool,
    /// TCP connections by sock_diag(7).
    #[serde(rename = "sock_diag")]
    SockDiag,
    /// The process's share of what its ports counted, by the PSNs of their queue pairs: packets with headers,
    /// at most 5 % wrong, or a bound.
    Psn,
    /// Derived, not counted (for example packets from the movement of a PSN).
    Est,
}

/// How far a share by PSN may be from the truth, as a part of it ([`Source::Psn`]).
pub(crate) const MIDDLE_IS_WITHIN: f64 = 0.05;

/// How certain a rate is, where that differs from its total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateIs {
    /// Exact where the total is, otherwise a lower bound.
    #[default]
    AsTotal,
    /// Exact, although the total may be a lower bound.
    Exact,
    /// An upper bound: others may have a part in it.
    AtMost,
}

/// Says whether a number is exact or a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The number is exact.
    Exact,
    /// The value is that number or more.
    AtLeast,
    /// The value is that number or less.
    AtMost,
}

/// A count that only grows, and its speed.
///
/// In JSON a total and a rate that are bounds are null, and what is known of them is in `at_least` and
/// `at_most`: a program that reads totals must not take a part for the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    /// Count since creation or since attach, in the counter's own unit.
    pub total: u64,
    /// Per second over the last interval; `None` without a usable interval (first sample, reset, re-add).
    pub rate: Option<f64>,
    /// Where it came from.
    pub source: Source,
    /// Something that belongs to it could not be read: `total` is a lower bound, and so is `rate` unless
    /// `rate_is` says otherwise.
    pub partial: bool,
    /// How certain `rate` is.
    pub rate_is: RateIs,
}

impl Counter {
    /// A counter of which nothing is missing.
    pub const fn whole(total: u64, rate: Option<f64>, source: Source) -> Self {
        Self {
            total,
            rate,
            source,
            partial: false,
            rate_is: RateIs::AsTotal,
        }
    }

    /// What is known of the total.
    pub const fn total_known(self) -> Known {
        if self.partial {
            Known::AtLeast
        } else {
            Known::Exact
        }
    }

    /// What is known of the rate.
    pub const fn rate_known(self) -> Known {
        match self.rate_is {
            RateIs::AsTotal => self.total_known(),
            RateIs::Exact => Known::Exact,
            RateIs::AtMost => Known::AtMost,
        }
    }

    /// Whether the rate is the middle of two bounds, of which the truth may be a little off.
    pub fn is_share(self) -> bool {
        self.source == Source::Psn && self.rate_known() == Known::Exact
    }

    /// The rate of which it is certain that so much moved; `None` where that is not known.
    pub fn certain_rate(self) -> Option<f64> {
        let known = self.rate.filter(|_| self.rate_known() != Known::AtMost)?;
        Some(if self.is_share() {
            known * (1.0 - MIDDLE_IS_WITHIN)
        } else {
            known
        })
    }

    /// The rate of which it is certain that no more moved; `None` where that is not known.
    pub fn most_rate(self) -> Option<f64> {
        let known = self.rate.filter(|_| self.rate_known() != Known::AtLeast)?;
        Some(if self.is_share() {
            known * (1.0 + MIDDLE_IS_WITHIN)
        } else {
            known
        })
    }

    /// The sum with something of which nothing is known: a lower bound.
    #[must_use]
    pub fn plus_unknown(self) -> Self {
        Self {
            rate: self.certain_rate(),
            partial: true,
            rate_is: RateIs::AsTotal,
            ..self
        }
    }

    /// The sum. The rate is known when both are. A bound makes the sum one; of an upper and a lower one
    /// only the lower one is left. The source is the one that says less.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let partial = self.partial || other.partial;
        let bounds = [self.rate_known(), other.rate_known()];
        let has = |bound| bounds.contains(&bound);
        let mixed = has(Known::AtMost) && has(Known::AtLeast);
        let part = |counter: Self| {
            let factor = match counter.rate_known() {
                Known::AtMost if mixed => 0.0,
                // In a bound the middle of two counts with its own.
                _ if !counter.is_share() => 1.0,
                _ if has(Known::AtLeast) => 1.0 - MIDDLE_IS_WITHIN,
                _ if has(Known::AtMost) => 1.0 + MIDDLE_IS_WITHIN,
                _ => 1.0,
            };
            counter.rate.map(|rate| rate * factor)
        };
        Self {
            total: self.total.saturating_add(other.total),
            rate: part(self).zip(part(other)).map(|(a, b)| a + b),
            source: self.source.max(other.source),
            partial,
            rate_is: match (mixed, has(Known::AtMost), has(Known::AtLeast)) {
                (false, true, _) => RateIs::AtMost,
                (false, false, false) if partial => RateIs::Exact,
                _ => RateIs::AsTotal,
            },
        }
    }
}

impl Serialize for Counter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct AtLeast {
            total: u64,
            rate: Option<f64>,
        }
        #[derive(Serialize)]
        struct AtMost {
            rate: Option<f64>,
        }
        let (total, rate) = (self.total_known(), self.rate_known());
        let at_least = (total == Known::AtLeast).then_some(AtLeast {
            total: self.total,
            rate: self.rate.filter(|_| rate == Known::AtLeast),
        });
        let at_most = (rate == Known::AtMost).then_some(AtMost { rate: self.rate });
        let length = 3 + usize::from(at_least.is_some()) + usize::from(at_most.is_some());
        let mut fields = serializer.serialize_struct("Counter", length)?;
        fields.serialize_field("total", &(total == Known::Exact).then_some(self.total))?;
        fields.serialize_field("rate", &self.rate.filter(|_| rate == Known::Exact))?;
        fields.serialize_field("source", &self.source)?;
        if let Some(known) = at_least {
            fields.serialize_field("at_least", &known)?;
        }
        if let Some(known) = at_most {
            fields.serialize_field("at_most", &known)?;
        }
        fields.end()
    }
}

/// A list that snapshots share: it changes rarely, and every snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Shared<T>(Arc<Vec<T>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Shared<T> {
    /// Whether the other is this very list, and not one like it.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> From<Vec<T>> for Shared<T> {
    fn from(list: Vec<T>) -> Self {
        Self(Arc::new(list))
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T> Deref for Shared<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

/// Tests alone change a list that is shared; the product has no use of this.
#[cfg(any(test, feature = "testkit"))]
impl<T: Clone> std::ops::DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<'a, T> IntoIterator for &'a Shared<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests;
