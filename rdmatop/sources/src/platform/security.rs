//! Kernel settings that decide what eBPF may do.

use crate::root::Root;

/// The settings; `None` where the file is not readable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// `kernel.perf_event_paranoid`: above 2 (Debian, Ubuntu) tracing takes `CAP_SYS_ADMIN`.
    pub perf_event_paranoid: Option<i64>,
    /// Lockdown is `confidentiality` (kernel_lockdown(7)): eBPF may not read kernel memory, and every program
    /// that does so is refused. With `integrity` kprobes and fentry still load.
    pub confidential: Option<bool>,
    /// The kernel has kprobe events (`CONFIG_KPROBE_EVENTS`): its perf device is there.
    pub kprobes: Option<bool>,
    /// /proc is mounted with `hidepid`: processes of other users are not listed.
    pub hidepid: Option<bool>,
}

impl Security {
    pub(super) fn read(root: &Root) -> Self {
        const MOUNTS_LIMIT: usize = 1 << 20;
        let perf_devices = root.sys("bus/event_source/devices");
        Self {
            perf_event_paranoid: root.signed(&root.proc("sys/kernel/perf_event_paranoid")),
            // "none [integrity] confidentiality": the brackets mark the mode in force.
            confidential: root
                .line(&root.sys("kernel/security/lockdown"))
                .map(|modes| modes.contains("[confidentiality]")),
            kprobes: perf_devices
                .is_dir()
                .then(|| perf_devices.join("kprobe").exists()),
            hidepid: root
                .bytes(&root.proc("self/mounts"), MOUNTS_LIMIT)
                .and_then(|raw| parse_hidepid(&raw)),
        }
    }
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
        let got = Security::read(&fake.root());
        let want = Security {
            perf_event_paranoid: Some(-1),
            confidential: Some(true),
            kprobes: Some(true),
            hidepid: Some(true),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn a_kernel_with_perf_but_without_the_kprobe_device_has_no_kprobes() {
        let fake = Fake::new();
        fake.sys("bus/event_source/devices/software/type", "1\n");
        assert_eq!(Security::read(&fake.root()).kprobes, Some(false));
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
            assert_eq!(Security::read(&fake.root()).confidential, Some(false), "{modes}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>) {
            let _ = parse_hidepid(&raw);
        }
    }
}
