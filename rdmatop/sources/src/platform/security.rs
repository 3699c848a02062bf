//! Kernel settings that decide what eBPF may do.

use crate::root::Root;

/// Whether lockdown is `confidentiality`: "none [integrity] confidentiality", the brackets mark the mode in
/// force.
pub(super) fn confidential(root: &Root) -> Option<bool> {
    let modes = root.line(&root.sys("kernel/security/lockdown"))?;
    Some(modes.contains("[confidentiality]"))
}

/// Whether the perf device of kprobes is there.
pub(super) fn kprobes(root: &Root) -> Option<bool> {
    let devices = root.sys("bus/event_source/devices");
    devices.is_dir().then(|| devices.join("kprobe").exists())
}

/// Whether /proc is mounted with `hidepid`.
pub(super) fn hidepid(root: &Root) -> Option<bool> {
    const MOUNTS: usize = 1 << 20;
    parse_hidepid(&root.bytes(&root.proc("self/mounts"), MOUNTS)?)
}

/// The options of the last mount on /proc in mounts (fstab(5) columns). Since 5.8 the option may be a word.
fn parse_hidepid(raw: &[u8]) -> Option<bool> {
    let mut found = None;
    for line in raw.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ').skip(1);
        if let (Some(b"/proc"), Some(b"proc"), Some(options)) = (fields.next(), fields.next(), fields.next())
        {
            let value = options
                .split(|b| *b == b',')
                .find_map(|option| option.strip_prefix(b"hidepid="));
            found = Some(value.is_some_and(|value| value != b"0" && value != b"off"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Platform;
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn settings_are_read_and_a_missing_one_is_unknown() {
        let fake = Fake::new();
        fake.proc("sys/kernel/perf_event_paranoid", "-1\n");
        fake.sys("kernel/security/lockdown", "none integrity [confidentiality]\n");
        fake.sys("bus/event_source/devices/kprobe/type", "6\n");
        fake.proc(
            "self/mounts",
            "proc /proc proc rw,nosuid,hidepid=invisible 0 0\nsysfs /sys sysfs rw 0 0\n",
        );
        let all = |root: Root| {
            let read = Platform::read(&root);
            let flags = [read.confidential, read.kprobes, read.hidepid];
            (read.perf_event_paranoid, flags)
        };
        assert_eq!(all(fake.root()), (Some(-1), [Some(true); 3]));
        assert_eq!(all(Fake::new().root()), (None, [None; 3]));
    }

    #[test]
    fn a_kernel_with_perf_but_without_the_kprobe_device_has_no_kprobes() {
        let fake = Fake::new();
        fake.sys("bus/event_source/devices/software/type", "1\n");
        assert_eq!(kprobes(&fake.root()), Some(false));
    }

    #[test]
    fn hidepid_off_in_either_spelling_is_off() {
        for (options, want) in [
            ("rw", false),
            ("rw,hidepid=0", false),
            ("hidepid=off", false),
            ("hidepid=2,gid=5", true),
        ] {
            assert_eq!(
                parse_hidepid(format!("proc /proc proc {options} 0 0\n").as_bytes()),
                Some(want),
                "{options}"
            );
        }
        assert_eq!(parse_hidepid(b"tmpfs /tmp tmpfs rw 0 0\n"), None);
    }

    #[test]
    fn of_the_lockdown_modes_the_one_in_force_counts() {
        for modes in [
            "[none] integrity confidentiality",
            "none [integrity] confidentiality",
        ] {
            let fake = Fake::new();
            fake.sys("kernel/security/lockdown", modes);
            assert_eq!(confidential(&fake.root()), Some(false), "{modes}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>) {
            let _ = parse_hidepid(&raw);
        }
    }
}
