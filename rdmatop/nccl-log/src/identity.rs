//! Which process of this machine wrote a line of the log. A PID alone does not tell: it may be in use again,
//! and in a container it is the number inside the container.

use serde::Serialize;

/// Tolerance, ns: the times of a log's file and of a process come from two clocks, and a process's start is
/// known only to a tick.
const SLACK_NS: u64 = 2_000_000_000;

/// A process of this machine that has the log's number, here or in its PID namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The process's number here.
    pub pid: u32,
    /// Its name (`comm`).
    pub comm: String,
    /// The log's number is the one that it has in a PID namespace of its own.
    pub nested: bool,
    /// Host name of its container, by the variable `HOSTNAME`.
    pub hostname: Option<String>,
    /// When it began, ns since the epoch.
    pub start_ns: Option<u64>,
    /// Libraries of interest that it has mapped; `None` if they cannot be read.
    pub libraries: Option<Vec<String>>,
    /// Whether it has the log's file open; `None` if that cannot be read or compared.
    pub log_open: Option<bool>,
    /// Whether the log is a file of another user than its own, and not root's.
    pub of_another: bool,
    /// Whether it is in another network namespace than rdmatop.
    pub other_network: Option<bool>,
}

/// How certain it is that a process wrote the log, the most certain first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The process has the log's file open.
    LogOpen,
    /// It has NCCL's or RCCL's library mapped, and began before the log's last write if that time is known.
    Library,
    /// It has CUDA's library mapped but not NCCL's, which may be linked into the program: not certain.
    Static,
    /// Its libraries cannot be read: not certain.
    Unread,
    /// The log is another user's, who may write any number into it: not certain.
    OtherUser,
}

impl Proof {
    /// What makes it uncertain, in words; `None` if it surely is the process.
    pub fn doubt(self) -> Option<&'static str> {
        match self {
            Self::LogOpen | Self::Library => None,
            Self::Static => Some(
                "it has not mapped libnccl: either NCCL is linked statically, or the number is used again",
            ),
            Self::Unread => {
                Some("its libraries cannot be read, so the number may be used again; run rdmatop as root")
            }
            Self::OtherUser => Some(
                "the log is a file of another user, who may have written this number into it: compare with care",
            ),
        }
    }
}

/// Which process wrote a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// This process wrote the log.
    Process(Box<Candidate>, Proof),
    /// No process has this number.
    Ended,
    /// Another process has the number now; with how that is known.
    Reused(Box<Candidate>, &'static str),
    /// Processes in several containers have the number inside; their numbers here.
    Several(Vec<u32>),
}

/// The name of a host without its domain, which NCCL cuts off.
pub fn without_domain(host: &str) -> &str {
    host.split('.').next().unwrap_or_default()
}

/// Whether a host of the log is the one of this name.
pub fn is_here(host: &str, here: &str) -> bool {
    !host.is_empty() && without_domain(host) == without_domain(here)
}

impl Candidate {
    /// Whether the process can belong to a host of the log: to this machine, or to its own container.
    pub fn belongs_to(&self, host: &str, here: &str) -> bool {
        is_here(host, here)
            || (self.nested && self.hostname.as_deref().is_some_and(|name| is_here(host, name)))
    }

    fn has_library(&self, names: &[&str]) -> Option<bool> {
        let libraries = self.libraries.as_ref()?;
        let is_one = |library: &String| names.iter().any(|name| library.starts_with(name));
        Some(libraries.iter().any(is_one))
    }

    /// How certain it is that the process wrote the log, or why it did not.
    fn judge(&self, last_write_ns: Option<u64>) -> Result<Proof, &'static str> {
        if let (Some(start), Some(end)) = (self.start_ns, last_write_ns)
            && start > end.saturating_add(SLACK_NS)
        {
            return Err("it began after the log's last line");
        }
        if self.log_open == Some(true) {
            return Ok(Proof::LogOpen);
        }
        let (nccl, cuda) = (&["libnccl", "librccl"], &["libcuda"]);
        match (self.has_library(nccl), self.has_library(cuda)) {
            (Some(false), Some(false) | None) => Err("it has mapped neither libnccl nor libcuda"),
            _ if self.of_another => Ok(Proof::OtherUser),
            (Some(true), _) => Ok(Proof::Library),
            (Some(false), Some(true)) => Ok(Proof::Static),
            (None, _) => Ok(Proof::Unread),
        }
    }
}

/// Decides among the processes that have the log's number. `last_write_ns`: when the log was last written, ns
/// since the epoch, if that is known.
pub fn identify(candidates: Vec<Candidate>, last_write_ns: Option<u64>) -> Identity {
    let mut fit: Vec<(Candidate, Proof)> = Vec::new();
    let mut unfit = None;
    for candidate in candidates {
        match candidate.judge(last_write_ns) {
            Ok(proof) => fit.push((candidate, proof)),
            Err(why) => unfit = unfit.or(Some((candidate, why))),
        }
    }
    // The best proof decides; candidates with a worse one are dropped.
    let best = fit.iter().map(|(_, proof)| *proof).min();
    fit.retain(|(_, proof)| Some(*proof) == best);
    match (fit.pop(), fit.as_slice()) {
        (None, _) => unfit.map_or(Identity::Ended, |(one, why)| Identity::Reused(Box::new(one), why)),
        (Some((only, proof)), []) => Identity::Process(Box::new(only), proof),
        (Some((last, _)), others) => {
            let mut pids: Vec<u32> = others.iter().map(|(one, _)| one.pid).collect();
            pids.push(last.pid);
            pids.sort_unstable();
            Identity::Several(pids)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Option<u64> = Some(100_000_000_000);

    fn candidate(pid: u32, libraries: &[&str]) -> Candidate {
        Candidate {
            pid,
            comm: "python3".to_owned(),
            start_ns: Some(50_000_000_000),
            libraries: Some(libraries.iter().map(|name| (*name).to_owned()).collect()),
            ..Candidate::default()
        }
    }

    fn proof(of: &Candidate, written: Option<u64>) -> Option<Proof> {
        match identify(vec![of.clone()], written) {
            Identity::Process(_, proof) => Some(proof),
            Identity::Reused(..) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_library_or_the_open_log_is_proof_and_its_absence_is_not_hidden() {
        let job = candidate(7, &["libcuda.so.1", "libnccl.so.2"]);
        assert_eq!(proof(&job, WRITTEN), Some(Proof::Library));
        assert_eq!(proof(&job, None), Some(Proof::Library), "from a pipe");
        assert_eq!(
            proof(&candidate(7, &["librccl.so.1"]), WRITTEN),
            Some(Proof::Library)
        );
        let linked = candidate(7, &["libcuda.so.1"]);
        assert_eq!(proof(&linked, WRITTEN), Some(Proof::Static));
        let unread = Candidate {
            libraries: None,
            ..job.clone()
        };
        assert_eq!(proof(&unread, WRITTEN), Some(Proof::Unread));
        assert!(Proof::Static.doubt().is_some() && Proof::Unread.doubt().is_some());
        assert!(Proof::Library.doubt().is_none() && Proof::LogOpen.doubt().is_none());
        for one in [&job, &linked, &unread] {
            let of_another = Candidate {
                of_another: true,
                ..one.clone()
            };
            assert_eq!(proof(&of_another, WRITTEN), Some(Proof::OtherUser), "{one:?}");
        }
        assert!(Proof::OtherUser.doubt().is_some());
        // No other process has the file open by chance.
        let writes = Candidate {
            log_open: Some(true),
            ..candidate(7, &[])
        };
        assert_eq!(proof(&writes, WRITTEN), Some(Proof::LogOpen));
    }

    #[test]
    fn a_number_that_is_used_again_is_not_the_process() {
        assert_eq!(proof(&candidate(7, &[]), WRITTEN), None, "bash");
        let later = Candidate {
            start_ns: Some(102_000_000_001),
            ..candidate(7, &["libnccl.so.2"])
        };
        assert_eq!(proof(&later, WRITTEN), None, "the next job");
        let about = Candidate {
            start_ns: Some(101_999_999_999),
            ..later
        };
        assert_eq!(
            proof(&about, WRITTEN),
            Some(Proof::Library),
            "the clocks differ a little"
        );
        assert_eq!(identify(Vec::new(), WRITTEN), Identity::Ended);
    }

    #[test]
    fn of_two_containers_the_proof_decides_or_nothing_does() {
        let [a, b] = [31, 22].map(|pid| candidate(pid, &["libnccl.so.2"]));
        assert_eq!(
            identify(vec![a.clone(), b.clone()], WRITTEN),
            Identity::Several(vec![22, 31])
        );
        let open = Candidate {
            log_open: Some(true),
            ..b.clone()
        };
        assert_eq!(
            identify(vec![a.clone(), open.clone()], WRITTEN),
            Identity::Process(Box::new(open), Proof::LogOpen)
        );
        let shell = candidate(9, &[]);
        assert_eq!(
            identify(vec![shell, a.clone()], WRITTEN),
            Identity::Process(Box::new(a), Proof::Library)
        );
    }

    #[test]
    fn a_host_is_compared_without_its_domain_and_a_container_by_its_own_name() {
        assert!(is_here("gpu-a", "gpu-a.example.org") && is_here("gpu-a.x", "gpu-a"));
        assert!(!is_here("gpu-a", "gpu-b") && !is_here("", ""));
        let pod = Candidate {
            nested: true,
            hostname: Some("trainer-0".to_owned()),
            ..Candidate::default()
        };
        assert!(pod.belongs_to("trainer-0", "gpu-a") && pod.belongs_to("gpu-a", "gpu-a"));
        assert!(!pod.belongs_to("trainer-1", "gpu-a"));
        // HOSTNAME in a shell says nothing about a process outside of containers.
        let plain = Candidate { nested: false, ..pod };
        assert!(!plain.belongs_to("trainer-0", "gpu-a"));
    }
}
