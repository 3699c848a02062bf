//! The scenarios, as a table: what each needs, what it runs and what it teaches.

#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What happens.
    pub(crate) what: &'static str,
    /// What to look for and in which tab, in two sentences.
    pub(crate) look: &'static str,
    /// RDMA devices `lab0`, `lab1`, ..., all on one switch.
    pub(crate) ports: u8,
    /// MTU of their interfaces: 4200 carries RoCE packets of 4096 bytes, 1500 such of 1024.
    pub(crate) mtu: u32,
    /// What happens to the packets that `lab0` sends.
    pub(crate) wire: Wire,
    /// Command lines of the programs.
    /// [`DISK`] stands for the path of the disk, which is made where a program needs it.
    pub(crate) traffic: &'static [&'static str],
}

/// What happens to packets on their way (tc-netem(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// All packets arrive, and in order.
    Clean,
    /// There is none: the kernel's disk and its target are both on `lab0`, whose interface has no cable.
    None,
    /// One in so many is lost.
    Loses(u32),
    /// One in so many overtakes those of the millisecond before it.
    Reorders(u32),
}
use Wire::{Loses, Reorders};

/// An argument: the NVMe disk that the kernel reaches through `lab0`.
pub(super) const DISK: &str = "DISK";

impl Scenario {
    pub(super) fn has_disk(&self) -> bool {
        self.wire == Wire::None
    }

    /// The programs, each with its arguments.
    pub(super) fn programs(&self) -> impl Iterator<Item = (&'static str, std::str::Split<'static, char>)> {
        self.traffic.iter().filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words))
        })
    }
}

/// The MTU of an interface with large packets.
const JUMBO: u32 = 4200;
/// The MTU that an interface has as a rule.
const USUAL: u32 = 1500;

/// What most scenarios have: one port, with large packets that all arrive.
const PLAIN: Scenario = Scenario {
    name: "",
    what: "",
    look: "",
    ports: 1,
    mtu: JUMBO,
    wire: Wire::Clean,
    traffic: &[],
};

/// In the order of `--list`: from what is healthy to what is wrong.
pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "pingpong",
        what: "two processes send one message of 64 bytes to and fro",
        look: "Tab 1 (Processes) shows `pingpong` and `pong` with the same rate of work requests, and tab 2 (QPs) one RC QP in \
               RTS for each, which names the other as its peer. Tab 7 (Findings) stays empty: this is what healthy looks like.",
        ports: 2,
        traffic: &["pingpong -d lab0 -p lab1"],
        ..PLAIN
    },
    Scenario {
        name: "ring-allreduce",
        what: "four ranks on four devices sum 1 MiB of floats each in a ring, twice a second",
        look: "Tab 2 (QPs) shows two QPs for each rank: one only sends, to the next rank, and one only receives, from the one \
               before. Each rank finishes 6 sends a round, 2(N-1) for N = 4, and tab 3 (Devices) shows all four devices carry \
               the same.",
        ports: 4,
        traffic: &["ring-allreduce -d lab0,lab1,lab2,lab3 -n 4 -b 1048576"],
        ..PLAIN
    },
    Scenario {
        name: "rnr",
        what: "a receiver posts one receive buffer every 20 ms, and its sender has 16 messages ready",
        look: "Tab 7 (Findings) says `receiver-not-ready` after some seconds, and names the process that posts too few receives \
               and not the one that waits. In tab 2 (QPs) the sender's QP waits for its receiver (RNR) while it finishes 50 \
               messages a second.",
        ports: 2,
        traffic: &["stream -d lab0 -p lab1 -b 4096 -l 20"],
        ..PLAIN
    },
    Scenario {
        name: "dead-peer",
        what: "a receiver is killed after 5 s, and its sender goes on",
        look: "Tab 2 (QPs) shows the receiver's QP go, and the sender's QP stay in RTS: it sends the same packets again and \
               finishes nothing, for ever, because retry_cnt is 7. Tab 7 (Findings) says `peer-gone` some seconds later.",
        ports: 2,
        traffic: &["stream -d lab0 -p lab1 -o write -k 5"],
        ..PLAIN
    },
    Scenario {
        name: "rails",
        what: "of four devices of a host one carries everything to a peer, lab4",
        look: "Tab 3 (Devices) shows lab0 busy and lab1, lab2 and lab3 idle. Tab 7 (Findings) says `hot-port` after 10 s where \
               the kernel counts packets alone; from Linux 7 on it counts bytes, and then only if half of the link's rate is \
               reached.",
        ports: 5,
        traffic: &["stream -d lab0 -p lab4 -o write"],
        ..PLAIN
    },
    Scenario {
        name: "funnel",
        what: "four devices send, all to one, lab4",
        look: "Tab 3 (Devices) shows lab0 to lab3 send, and lab4 receive all of it. Tab 7 (Findings) says `rx-funnel` after 10 \
               s: all peers have the address of one NIC.",
        ports: 5,
        mtu: USUAL,
        // Paced: it is who receives that matters, and not how much.
        traffic: &[
            "stream -d lab0 -p lab4 -o write -w 2 -m 20",
            "stream -d lab1 -p lab4 -o write -w 2 -m 12",
            "stream -d lab2 -p lab4 -o write -w 2 -m 12",
            "stream -d lab3 -p lab4 -o write -w 2 -m 12",
        ],
        ..PLAIN
    },
    Scenario {
        name: "loss",
        what: "the sender's interface loses one packet in a hundred (`tc -s qdisc show dev labnet0`)",
        look: "Tab 2 (QPs) shows retransmissions of the sender's QP, and tab 3 (Devices) the retries of lab0. Tab 7 (Findings) \
               says `loss` after 8 s, with how often the sender starts again.",
        ports: 2,
        wire: Loses(100),
        traffic: &["stream -d lab0 -p lab1 -o write"],
        ..PLAIN
    },
    Scenario {
        name: "reorder",
        what: "one packet in a hundred overtakes those before it (`tc -s qdisc show dev labnet0`)",
        look: "Tab 2 (QPs) shows the sender's QP send again although no packet is lost: its receiver takes packets in order alone, \
               as behind a switch that spreads one QP over several links. Tab 7 (Findings) says `loss` after 8 s, because a \
               NIC cannot tell the two apart.",
        ports: 2,
        wire: Reorders(100),
        // Messages of one packet: on Linux 6.1 a larger one ended as an invalid request when it was sent
        // again from its middle.
        traffic: &["stream -d lab0 -p lab1 -o write -b 4096"],
        ..PLAIN
    },
    Scenario {
        name: "mtu",
        what: "the same messages through ports of MTU 1500: packets of 1024 bytes instead of 4096",
        look: "Tab 3 (Devices) shows active MTU 1024 in the detail of lab0 (Enter), and four times the packets for the bytes \
               that `dead-peer` moves before its peer dies. No finding says so on SoftRoCE: `small-mtu` is for ports of 25 \
               Gb/s and more.",
        ports: 2,
        mtu: USUAL,
        traffic: &["stream -d lab0 -p lab1 -o write"],
        ..PLAIN
    },
    Scenario {
        name: "churn",
        what: "one process registers and deregisters a buffer, one makes and destroys a QP, as fast as they can",
        look: "Tab 4 (Verbs) shows how many reg_mr and create_qp there are each second, how long they take, and who calls. Tab 7 \
               (Findings) says `mr-churn` and `qp-churn` after 10 s, and tab 5 (Trace) shows the QPs come and go.",
        traffic: &["misuse -d lab0 mr-churn", "misuse -d lab0 qp-churn"],
        ..PLAIN
    },
    Scenario {
        name: "leak",
        what: "a process makes eight QPs each second and destroys none",
        look: "Tab 1 (Processes) shows the number of QPs of `misuse` grow while it moves nothing. Tab 7 (Findings) says \
               `qp-leak` once it grew by 32.",
        traffic: &["misuse -d lab0 qp-leak"],
        ..PLAIN
    },
    Scenario {
        name: "memlock",
        what: "a user without rights registers 1 MiB with a limit of 8 KiB of locked memory, ten times a second",
        look: "Tab 7 (Findings) says `verb-fails`: reg_mr of `misuse` with ENOMEM, and the limit to raise. Tab 4 (Verbs) shows \
               that each call fails.",
        traffic: &["misuse -d lab0 memlock"],
        ..PLAIN
    },
    Scenario {
        name: "gid",
        what: "a process connects its QP by an index of the GID table that is empty, ten times a second",
        look: "Tab 7 (Findings) says `verb-fails`: modify_qp of `misuse` with ENODATA, the `No data available` that NCCL prints. \
               Tab 2 (QPs) shows its QP stay in INIT, before the step to RTR that needs the GID.",
        traffic: &["misuse -d lab0 gid"],
        ..PLAIN
    },
    Scenario {
        name: "storm",
        what: "four processes make 32 QPs each, bring them to RTS and destroy them, again and again, as jobs do that start",
        look: "Tab 5 (Trace) shows create, RESET->INIT, INIT->RTR, RTR->RTS and destroy of each QP, and tab 4 (Verbs) how long each \
               step takes. The header on tab 1 counts the events that were lost, none with the default ring buffer, and after 10 s \
               tab 7 (Findings) says `qp-churn`, because jobs that start destroy none.",
        traffic: &[
            "misuse -d lab0 storm",
            "misuse -d lab0 storm",
            "misuse -d lab0 storm",
            "misuse -d lab0 storm",
        ],
        ..PLAIN
    },
    Scenario {
        name: "tcp-fallback",
        what: "a job with NCCL's library mapped moves its data by TCP beside an idle RDMA device",
        look: "Tab 7 (Findings) says `tcp-fallback` after some seconds: the process, its rate and the setting to look at. Tab 1 \
               (Processes) shows the job first, with TCP and its rate in place of a reason, and no QP.",
        traffic: &["tcp-fallback"],
        ..PLAIN
    },
    Scenario {
        name: "nvme",
        what: "the kernel reads and writes a disk over RDMA: NVMe over Fabrics, host and target on this machine",
        look: "Tab 1 (Processes) shows the kernel at work and no process: `[rdma_cm]`, by which it made its QPs, or `[nvme_rdma]` \
               and `[nvmet_rdma]` where rdmatop ran before. Tab 2 (QPs) shows both ends of two connections on lab0, one for \
               administration and one for data, and tab 7 (Findings) stays empty.",
        mtu: USUAL,
        wire: Wire::None,
        traffic: &["disk DISK"],
        ..PLAIN
    },
];

pub(super) fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_says_what_to_look_for_and_where_in_two_sentences() {
        for scenario in ALL {
            let Scenario { name, look, .. } = scenario;
            assert!(
                look.contains("ab 7") || look.contains("ab 3") || look.contains("ab 1"),
                "{name}: no tab"
            );
            assert_eq!(look.matches(". ").count(), 1, "{name}: {look}");
            assert!(look.ends_with('.') && !look.contains("  "), "{name}: {look}");
        }
    }

    #[test]
    fn traffic_runs_on_devices_that_the_scenario_has() {
        for scenario in ALL {
            let words = scenario.programs().flat_map(|(_, args)| args);
            for device in words
                .flat_map(|word| word.split(','))
                .filter_map(|word| word.strip_prefix("lab"))
            {
                let number: u8 = device.parse().unwrap();
                assert!(number < scenario.ports, "{}: lab{number}", scenario.name);
            }
        }
    }
}
