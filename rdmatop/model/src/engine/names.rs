//! Text: sanitized once, shared from then on.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use rdmatop_common::event::{COMM_LEN, DEVICE_NAME_LEN};

use rdmatop_base::text;

/// Raw names remembered; more than any host has at one time, and a bound for those that change names on
/// purpose.
const REMEMBERED: usize = 4096;
/// Names looked at before the map: most records are about few processes on few devices.
const RECENT: usize = 4;

/// Maps raw bytes to safe text. A known name costs a look-up, not an allocation.
#[derive(Debug, Default)]
pub(super) struct Names {
    plain: SafeNames,
    /// Names of kernel consumers, in brackets.
    kernel: SafeNames,
    /// Names in records, whose fields have a fixed length: compared as a few words.
    comms: Latest<COMM_LEN>,
    devices: Latest<DEVICE_NAME_LEN>,
}

impl Names {
    /// Safe text of raw bytes up to the first NUL, which ends a kernel string.
    pub(super) fn of(&mut self, raw: &[u8]) -> Arc<str> {
        self.plain.get(raw, safe)
    }

    /// As [`Names::of`], of a process in a record.
    pub(super) fn comm(&mut self, raw: &[u8; COMM_LEN]) -> Arc<str> {
        self.comms.get(raw, || self.plain.get(raw, safe))
    }

    /// As [`Names::of`], of a device in a record.
    pub(super) fn device(&mut self, raw: &[u8; DEVICE_NAME_LEN]) -> Arc<str> {
        self.devices.get(raw, || self.plain.get(raw, safe))
    }

    /// A kernel consumer's name, in brackets as `ps` shows kernel threads.
    pub(super) fn kernel(&mut self, raw: &[u8]) -> Arc<str> {
        self.kernel.get(raw, |raw| format!("[{}]", safe(raw)))
    }
}

/// The names of the latest records, by their whole fields.
#[derive(Debug)]
struct Latest<const N: usize> {
    known: [Option<([u8; N], Arc<str>)>; RECENT],
    turn: usize,
}

impl<const N: usize> Default for Latest<N> {
    fn default() -> Self {
        Self {
            known: [const { None }; RECENT],
            turn: 0,
        }
    }
}

impl<const N: usize> Latest<N> {
    fn get(&mut self, raw: &[u8; N], look_up: impl FnOnce() -> Arc<str>) -> Arc<str> {
        for (known, name) in self.known.iter().flatten() {
            if known == raw {
                return Arc::clone(name);
            }
        }
        let name = look_up();
        self.turn = (self.turn + 1) % RECENT;
        self.known[self.turn] = Some((*raw, Arc::clone(&name)));
        name
    }
}

#[derive(Debug, Default)]
struct SafeNames {
    all: HashMap<Box<[u8]>, Arc<str>>,
}

impl SafeNames {
    fn get(&mut self, raw: &[u8], make: impl FnOnce(&[u8]) -> String) -> Arc<str> {
        let raw = raw.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(name) = self.all.get(raw) {
            return Arc::clone(name);
        }
        if self.all.len() >= REMEMBERED {
            self.all.clear();
        }
        let name: Arc<str> = make(raw).into();
        self.all.insert(raw.into(), Arc::clone(&name));
        name
    }
}

/// Safe text of raw bytes.
pub(super) fn safe(raw: &[u8]) -> String {
    text::sanitize(raw)
}

/// Safe text of an optional raw string.
pub(super) fn safe_opt(raw: Option<&String>) -> Option<Arc<str>> {
    raw.map(|text| safe(text.as_bytes()).into())
}

/// A GUID as sysfs writes it: four groups of four hex digits.
pub(super) fn guid(value: u64) -> String {
    let group = |shift: u32| (value >> shift) & 0xffff;
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        group(48),
        group(32),
        group(16),
        group(0)
    )
}

/// The order in which people count: digits by value, so that `mlx5_2` comes before `mlx5_10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        match (left.first(), right.first()) {
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (x, rest_left) = number(left);
                let (y, rest_right) = number(right);
                // Without leading zeroes the longer number is the larger one; no length overflows this.
                let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
                if order != Ordering::Equal {
                    return order;
                }
                (left, right) = (rest_left, rest_right);
            }
            (Some(x), Some(y)) if x == y => (left, right) = (&left[1..], &right[1..]),
            // `007` and `7` count alike; the whole text decides, so that the order is total.
            (None, None) => return a.cmp(b),
            (x, y) => return x.cmp(&y),
        }
    }
}

fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeroes = digits
        .iter()
        .position(|byte| *byte != b'0')
        .unwrap_or(digits.len());
    (&digits[zeroes..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_sort_as_people_count() {
        let mut names = ["mlx5_10", "rxe0", "mlx5_2", "mlx5_02", "mlx5", "mlx5_2a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["mlx5", "mlx5_02", "mlx5_2", "mlx5_2a", "mlx5_10", "rxe0"]);
    }

    #[test]
    fn a_kernel_string_ends_at_its_nul() {
        let mut names = Names::default();
        assert_eq!(&*names.of(b"rxe0\0garbage"), "rxe0");
        assert_eq!(&*names.kernel(b"ib_core\0\0"), "[ib_core]");
    }

    #[test]
    fn a_name_that_begins_like_another_is_another() {
        let mut names = Names::default();
        for _ in 0..3 {
            for name in ["", "rxe", "rxe0", "rxe01", "rxe1", "x", "y", "z"] {
                assert_eq!(&*names.of(name.as_bytes()), name);
                assert_eq!(&*names.of(format!("{name}\0x").as_bytes()), name);
            }
        }
    }

    #[test]
    fn a_field_of_a_record_is_its_text_whatever_follows_it() {
        let mut names = Names::default();
        let mut field = [0; COMM_LEN];
        for text in ["a", "bb", "a", "ccc", "dddd", "e", "bb", "a"] {
            for rest in [0, b'x'] {
                field.fill(rest);
                field[..text.len()].copy_from_slice(text.as_bytes());
                field[text.len()] = 0;
                for _ in 0..2 {
                    assert_eq!(&*names.comm(&field), text);
                }
            }
        }
        let mut device = [0; DEVICE_NAME_LEN];
        device[..4].copy_from_slice(b"rxe0");
        assert_eq!(&*names.device(&device), "rxe0");
        device[DEVICE_NAME_LEN - 1] = b'x';
        assert_eq!(&*names.device(&device), "rxe0");
        device[3] = b'1';
        assert_eq!(&*names.device(&device), "rxe1");
    }

    #[test]
    fn names_that_change_all_the_time_do_not_fill_memory() {
        let mut names = Names::default();
        for i in 0..10 * REMEMBERED {
            names.of(i.to_string().as_bytes());
        }
        assert!(names.plain.all.len() <= REMEMBERED);
    }

    #[test]
    fn a_guid_is_written_as_sysfs_writes_it() {
        assert_eq!(guid(0x506b_4b03_00aa_0102), "506b:4b03:00aa:0102");
    }

    proptest::proptest! {
        #[test]
        fn natural_order_is_total(a in "[a-z0-9_]{0,8}", b in "[a-z0-9_]{0,8}", c in "[a-z0-9_]{0,8}") {
            proptest::prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            proptest::prop_assert_eq!(natural(&a, &b) == Ordering::Equal, a == b);
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                proptest::prop_assert!(natural(&a, &c).is_le());
            }
        }
    }
}
