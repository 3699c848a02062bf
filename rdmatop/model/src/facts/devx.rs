//! Objects that processes make past ib_core (DEVX): no list of the kernel has them.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use rdmatop_base::text;

#[cfg(doc)]
use super::ProcessRow;

/// Makes an enumeration of a table of kinds, each with its name.
macro_rules! named_kinds {
    ($(#[$of:meta])* $type:ident: $($(#[$about:meta])* $kind:ident = $name:literal,)*) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub enum $type {
            $($(#[$about])* #[serde(rename = $name)] $kind,)*
        }

        impl $type {
            /// Every kind, in the order of their numbers.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The name in JSON, events and filters.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}
pub(crate) use named_kinds;

named_kinds! {
    /// The kind of an object that a program makes past ib_core, by the opcode of the command that makes it.
    DevxKind:
    /// A queue pair.
    Qp = "qp",
    /// A target of dynamically connected queue pairs.
    Dct = "dct",
    /// A send queue alone.
    Sq = "sq",
    /// A receive queue alone.
    Rq = "rq",
    /// A shared receive queue that matches tags.
    Xrq = "xrq",
    /// A shared receive queue.
    Srq = "srq",
    /// Memory of receive queues.
    Rmp = "rmp",
    /// A completion queue.
    Cq = "cq",
    /// A memory key, a rule of flow steering, or anything else.
    Other = "other",
    /// Its making was not seen, or the command could not be read.
    Unknown = "unknown",
}

impl DevxKind {
    /// The kind that a command with this opcode makes (`MLX5_CMD_OP_CREATE_*`, include/linux/mlx5/mlx5_ifc.h
    /// of Linux 6.1, 6.12 and 7.2); `None`: the opcode is not known.
    pub const fn of(opcode: Option<u32>) -> Self {
        match opcode {
            Some(0x400) => Self::Cq,
            Some(0x500) => Self::Qp,
            // CREATE_SRQ and CREATE_XRC_SRQ.
            Some(0x700 | 0x705) => Self::Srq,
            Some(0x710) => Self::Dct,
            Some(0x717) => Self::Xrq,
            Some(0x904) => Self::Sq,
            Some(0x908) => Self::Rq,
            Some(0x90c) => Self::Rmp,
            Some(_) => Self::Other,
            None => Self::Unknown,
        }
    }

    /// Whether data can move through it. What is not known may be a queue pair.
    pub const fn carries(self) -> bool {
        matches!(self, Self::Qp | Self::Dct | Self::Sq | Self::Rq | Self::Unknown)
    }
}

/// How many objects of each kind.
pub type DevxCounts = BTreeMap<DevxKind, u64>;

/// The objects that a process made on a device past ib_core.
#[derive(Clone, Debug, PartialEq)]
pub struct DevxObjects {
    /// Device name; `None` if that is not known.
    pub device: Option<Arc<str>>,
    /// [`super::DeviceRow::uid`]; `None` if that is not known.
    pub device_uid: Option<u64>,
    /// Each call of the process was seen. Otherwise it may have made more.
    pub whole: bool,
    /// Those that it has made.
    pub made: DevxCounts,
    /// Those that were destroyed by a call. What ends with the process or with its file is not among them.
    pub destroyed: DevxCounts,
    /// Those that are there, as far as calls were seen. Where not each was, one that destroyed some may be
    /// missing, so that this is no bound, and JSON has null.
    pub now: DevxCounts,
}

impl Serialize for DevxObjects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("DevxObjects", 5)?;
        fields.serialize_field("device", &self.device)?;
        fields.serialize_field("whole", &self.whole)?;
        fields.serialize_field("made", &self.made)?;
        fields.serialize_field("destroyed", &self.destroyed)?;
        fields.serialize_field("now", &self.whole.then_some(&self.now))?;
        fields.end()
    }
}

impl DevxObjects {
    /// How many there are, or were, through which data can move.
    pub fn carriers(&self) -> u64 {
        let there = if self.whole { &self.now } else { &self.made };
        let carriers = there.iter().filter(|(kind, _)| kind.carries());
        carriers.map(|(_, count)| count).sum()
    }

    /// What is there, in words: `3 DEVX QPs, 1 CQ on mlx5_0`; else what is known to have been made.
    pub fn words(&self) -> String {
        let (counts, at_least, made) = if self.whole {
            (&self.now, "", "")
        } else {
            (&self.made, "≥", " made")
        };
        let one = |(kind, count): (&DevxKind, &u64)| {
            let name = match kind {
                DevxKind::Other | DevxKind::Unknown => format!("{} object", kind.name()),
                kind => kind.name().to_uppercase(),
            };
            format!("{at_least}{}", text::count(*count, &format!("DEVX {name}")))
        };
        let all: Vec<String> = counts.iter().map(one).collect();
        let all = if all.is_empty() {
            format!("{at_least}0 DEVX objects")
        } else {
            all.join(", ")
        };
        match &self.device {
            Some(device) => format!("{all}{made} on {device}"),
            None => format!("{all}{made}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name_and_only_queues_of_data_carry() {
        for (at, kind) in DevxKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        let carry = DevxKind::ALL.into_iter().filter(|kind| kind.carries());
        assert_eq!(
            carry.map(DevxKind::name).collect::<Vec<_>>(),
            ["qp", "dct", "sq", "rq", "unknown"]
        );
    }

    #[test]
    fn a_command_makes_what_mlx5_ifc_h_says() {
        // CREATE_MKEY, CREATE_TIR, CREATE_TIS, CREATE_RQT, CREATE_GENERAL_OBJECT.
        for opcode in [0x200, 0x900, 0x912, 0x916, 0xa00] {
            assert_eq!(DevxKind::of(Some(opcode)), DevxKind::Other, "{opcode:#x}");
        }
        assert_eq!(DevxKind::of(Some(0x500)), DevxKind::Qp);
        assert_eq!(DevxKind::of(Some(0x705)), DevxKind::Srq);
        assert_eq!(DevxKind::of(None), DevxKind::Unknown);
    }
}
