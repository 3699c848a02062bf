//! Kernel settings that decide what eBPF may do.

use crate::root::Root;

/// kernel_lockdown(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockdown {
    /// Off.
    None,
    /// kprobes and fentry still load.
    Integrity,
    /// eBPF may not read kernel memory: every program that does so is refused.
    Confidentiality,
}

/// The settings; `None` where the file is not readable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// `kernel.perf_event_paranoid`: above 2 (Debian, Ubuntu) tracing takes `CAP_SYS_ADMIN`.
    pub perf_event_paranoid: Option<i64>,
    /// Lockdown mode.
    pub lockdown: Option<Lockdown>,
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
            lockdown: root
                .value(&root.sys("kernel/security/lockdown"))
                .and_then(|raw| parse_lockdown(&raw)),
            kprobes: perf_devices
                .is_dir()
                .then(|| perf_devices.join("kprobe").exists()),
            hidepid: root
                .bytes(&root.proc("self/mounts"), MOUNTS_LIMIT)
                .and_then(|raw| parse_hidepid(&raw)),
        }
    }
}

/// "none [integrity] confidentiality": the brackets mark the mode in force.
fn parse_lockdown(raw: &[u8]) -> Option<Lockdown> {
    let text = std::str::from_utf8(raw).ok()?;
    match text.split_once('[')?.1.split_once(']')?.0 {
        "none" => Some(Lockdown::None),
        "integrity" => Some(Lockdown::Integrity),
        "confidentiality" => Some(Lockdown::Confidentiality),
        _ => None,
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
            lockdown: Some(Lockdown::Confidentiality),
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
    fn each_lockdown_mode_is_known() {
        assert_eq!(
            parse_lockdown(b"[none] integrity confidentiality"),
            Some(Lockdown::None)
        );
        assert_eq!(
            parse_lockdown(b"none [integrity] confidentiality"),
            Some(Lockdown::Integrity)
        );
        assert_eq!(parse_lockdown(b"none integrity"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>) {
            let _ = (parse_lockdown(&raw), parse_hidepid(&raw));
        }
    }
}
