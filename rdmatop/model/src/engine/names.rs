//! Text: sanitized once, shared from then on.

use std::sync::Arc;

use super::hash::NameMap;
use rdmatop_base::text;

/// Raw names remembered; more than any host has at one time, and a bound for those that change names on
/// purpose.
const REMEMBERED: usize = 4096;

/// Maps raw bytes to safe text. A known name costs a look-up, not an allocation.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Names, and those of kernel consumers, in brackets.
    all: [NameMap<Arc<str>>; 2],
}

impl Names {
    /// Safe text of raw bytes up to the first NUL, which ends a kernel string.
    pub(super) fn of(&mut self, raw: &[u8]) -> Arc<str> {
        self.get(0, raw)
    }

    /// A kernel consumer's name, in brackets as `ps` shows kernel threads.
    pub(super) fn kernel(&mut self, raw: &[u8]) -> Arc<str> {
        self.get(1, raw)
    }

    fn get(&mut self, kernel: usize, raw: &[u8]) -> Arc<str> {
        let raw = raw.split(|byte| *byte == 0).next().unwrap_or_default();
        let known = &mut self.all[kernel];
        if let Some(name) = known.get(raw) {
            return Arc::clone(name);
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let name = if kernel > 0 {
            format!("[{}]", safe(raw))
        } else {
            safe(raw)
        };
        let name: Arc<str> = name.into();
        known.insert(raw.into(), Arc::clone(&name));
        name
    }
}

pub(super) fn safe(raw: &[u8]) -> String {
    text::sanitize(raw)
}

pub(super) fn safe_opt(raw: Option<&String>) -> Option<Arc<str>> {
    raw.map(|text| safe(text.as_bytes()).into())
}

/// A GUID as sysfs writes it: four groups of four hex digits.
pub(super) fn guid(value: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| value >> shift & 0xffff);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_common::event::{COMM_LEN, DEVICE_NAME_LEN};

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
                    assert_eq!(&*names.of(&field), text);
                }
            }
        }
        let mut device = [0; DEVICE_NAME_LEN];
        device[..4].copy_from_slice(b"rxe0");
        assert_eq!(&*names.of(&device), "rxe0");
        device[DEVICE_NAME_LEN - 1] = b'x';
        assert_eq!(&*names.of(&device), "rxe0");
        device[3] = b'1';
        assert_eq!(&*names.of(&device), "rxe1");
    }

    #[test]
    fn names_that_change_all_the_time_do_not_fill_memory() {
        let mut names = Names::default();
        for i in 0..10 * REMEMBERED {
            names.of(i.to_string().as_bytes());
        }
        assert!(names.all[0].len() <= REMEMBERED);
    }

    #[test]
    fn a_guid_is_written_as_sysfs_writes_it() {
        assert_eq!(guid(0x506b_4b03_00aa_0102), "506b:4b03:00aa:0102");
    }
}
