//! Where each executable of the kernel tests runs: on which kernels, and in which kind of guest.

use crate::lab::{kernel::Series, modules, nic};

/// The kernel of tests that ask for one by `Lab::enter_on_one`: the one that is installed most.
pub(super) const ONE_KERNEL: &str = "6.12";
/// Test executables that do not run on every kernel unless that is asked for (`--everywhere`, `--kernel`), and where they run.
/// What a kernel decides runs on all: lifecycle, the counts of SoftRoCE and soft iWARP, and work requests as events. What rdmatop alone
/// decides runs on one, and what differs between old and new kernels on one of each; these are spread so that no guest takes much longer
/// than the others.
pub(super) const ON_SOME_KERNELS: [(&str, &[&str]); 33] = [
    // The tests' own programs, terminals, commands and documents.
    ("traffic-", &["6.12"]),
    ("flood-", &["6.12"]),
    ("faults_terminal-", &["6.12"]),
    ("lab_command-", &["6.12"]),
    ("examples-", &["6.12"]),
    ("learn-", &["6.12"]),
    ("nccl_log-", &["6.12"]),
    ("lab_scenarios-", &["7.2"]),
    ("live-", &["5.10", "6.12"]),
    ("doctor-", &["5.10", "6.12"]),
    ("robust-", &["5.10", "7.2"]),
    // What the model makes of counts.
    ("findings-", &["6.12"]),
    ("judgement-", &["6.1"]),
    ("faults_owners-", &["7.2"]),
    ("faults_many-", &["6.1"]),
    ("identity-", &["7.2"]),
    ("figures-", &["5.10", "6.1"]),
    ("hw_counters-", &["5.10", "6.12"]),
    // Verbs as calls, entries by fentry, and programs that come while traffic runs: the oldest kernel that has them and the newest.
    // Debian's 7.2 preempts programs, so fentry is another thing there.
    ("attach-", &["6.1", "7.2"]),
    ("verbs-", &["5.10", "6.1", "7.2"]),
    // On 5.10 it says why there is none.
    ("fentry-", &["5.10", "6.1", "7.2"]),
    // NICs made by test drivers.
    ("testnic-", &["6.12", "7.2"]),
    ("testnic_findings-", &["7.2"]),
    ("testnic_gpu-", &["6.12"]),
    // From 6.7 on the kernel counts what it skips.
    ("skips-", &["6.1", "7.2"]),
    // What a host lacks or forbids; limits of memory are other ones before 5.11.
    ("degrade-", &["6.12"]),
    ("faults_host-", &["5.10", "6.12"]),
    ("presence-", &["7.2"]),
    // Probes on programs: the kernel only delivers them.
    ("uprobes-", &["6.1"]),
    ("uprobes_loads-", &["6.12"]),
    ("uprobes_memory-", &["7.2"]),
    ("wr_uprobes-", &["6.12"]),
    ("bypass_uprobes-", &["6.12"]),
];

/// Test executables with a guest of their own.
pub(super) struct Group {
    /// What it is called in the log.
    pub(super) name: &'static str,
    /// Beginnings of their names, in the order in which they run; none: all that no other group has.
    pub(super) prefixes: &'static [&'static str],
    /// Options of `lab run`.
    pub(super) options: &'static [&'static str],
    /// Whether a kernel can have such a guest.
    pub(super) has: fn(Series) -> bool,
    /// What an executable takes, about: the longest guest begins first, and the short ones fill what is left at the end.
    pub(super) seconds: usize,
    /// Its tests wait most of their time, for counters to be read again and for what must last a while: such guests have a place of
    /// their own beside the others, which have the CPUs busy.
    pub(super) waits: bool,
}

pub(super) const GROUPS: [Group; 7] = [
    Group {
        name: "rxe",
        prefixes: &[],
        options: &[],
        has: |_| true,
        seconds: 55,
        waits: false,
    },
    // In a guest of their own, because that of the one kernel would be much longer than the others.
    Group {
        name: "once",
        prefixes: &[
            "traffic-",
            "flood-",
            "faults_terminal-",
            "lab_command-",
            "examples-",
        ],
        options: &[],
        has: |_| true,
        seconds: 130,
        waits: false,
    },
    // Programs come and go under traffic: one CPU, as below.
    Group {
        name: "find",
        prefixes: &["findings-", "nccl_log-", "learn-"],
        options: &["--cpus", "1"],
        has: |_| true,
        seconds: 300,
        waits: false,
    },
    // They turn switches of the whole kernel, or let programs come and go under traffic: what a switch leaves behind would be
    // everybody's. One CPU, because the code that all kprobes go through is patched by them, and QEMU's translator may go on
    // with the old code on another CPU: then no kprobe runs there any more, or the guest dies. The last one locks the kernel
    // down, for which there is no way back.
    Group {
        name: "alone",
        prefixes: &[
            "degrade-",
            "faults_host-",
            "presence-",
            "attach-",
            "skips-",
            "uprobes-",
            "uprobes_loads-",
            "uprobes_memory-",
            "wr_uprobes-",
            // Last: it locks the kernel down, for good.
            "lockdown-",
        ],
        options: &["--cpus", "1"],
        has: |_| true,
        seconds: 60,
        waits: false,
    },
    // `rdmatop lab run`: what it makes and takes down again is everybody's.
    Group {
        name: "lab",
        prefixes: &["lab_scenarios-"],
        options: &["--cpus", "1"],
        has: |series| series.name != "5.10",
        seconds: 350,
        waits: true,
    },
    // A machine without SoftRoCE.
    Group {
        name: "testnic",
        prefixes: &["testnic-", "testnic_findings-", "testnic_gpu-"],
        options: &["--devices", "0"],
        has: modules::has_test_drivers,
        seconds: 200,
        waits: true,
    },
    // A NIC that the kernel does not see at work. One CPU, as above: a probe on a process turns a static branch of the scheduler
    // (perf_sched_events), and the guest died of it.
    Group {
        name: "bypass",
        prefixes: &["bypass-", "bypass_uprobes-"],
        options: &["--nic", "pvrdma", "--cpus", "1"],
        has: nic::is_for,
        seconds: 40,
        waits: false,
    },
];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{lab::kernel, paths};

    #[test]
    fn each_executable_of_the_list_exists_and_has_a_guest_for_each_of_its_tests() {
        let tests = paths::repo().join("tests/tests");
        for (prefix, kernels) in ON_SOME_KERNELS {
            let name = prefix.strip_suffix('-').unwrap();
            let single = tests.join(format!("{name}.rs"));
            assert!(
                single.is_file() || tests.join(name).join("main.rs").is_file(),
                "{name}"
            );
            let of_one = fs::read_to_string(single).is_ok_and(|text| text.contains("on_one("));
            assert!(
                !of_one || kernels.contains(&ONE_KERNEL),
                "{name} has tests that run nowhere"
            );
            let group = GROUPS.iter().find(|group| group.prefixes.contains(&prefix));
            let group = group.unwrap_or(&GROUPS[0]);
            for kernel in kernels {
                let series = kernel::find(kernel).unwrap();
                assert!((group.has)(series), "{name} on {kernel}");
            }
        }
    }
}
