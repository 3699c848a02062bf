//! What the user asked for, and the programs and offsets that follow from it.
use std::collections::BTreeSet;

use rdmatop_base::order::Gather as _;
use rdmatop_common::{offsets::SIGN_OF_TASK_BTF, wr::WrFilter};

use crate::{
    hooks::{Hook, Role, control::CONTROL_PLANE, datapath, work::WORK_HOOKS},
    plan::scope::Scope,
    user::{self, UserOptions},
};

/// What the command line, or a test, asks of the loader.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer, a power of two and a multiple of the page size. Tests make it tiny.
    pub ring_bytes: u32,
    /// fentry and fexit where the kernel supports them and they miss nothing, kprobes elsewhere. Else kprobes
    /// alone: fentry keeps the modules from being unloaded.
    pub fentry: bool,
    /// How many QPs to have room for. `None`: twice as many as exist at the start, with a minimum.
    pub max_qps: Option<u32>,
    /// How many slots to have in any case. Tests make it tiny.
    pub slots: Option<u32>,
    /// How many QPs the tables are to hold in any case. Tests make it tiny.
    pub known_qps: Option<u32>,
    /// What the session is to deliver.
    pub scope: Scope,
    /// Time `write()` commands even where that slows down every doorbell: with a data path, and in a trace.
    pub verb_times: bool,
    /// Probe programs whose posts bypass the kernel.
    pub uprobes: Option<UserOptions>,
    /// Count work requests in the kernel where possible. Tests switch it off to test probes on programs.
    pub datapaths: bool,
    /// Make records of the work requests that the filter selects; the number is the size of their ring buffer
    /// in bytes. With `None` the programs that make them are not loaded.
    pub work: Option<(WrFilter, u32)>,
}

impl Options {
    /// Whether these options need a hook.
    pub(crate) fn wants(&self, hook: &Hook) -> bool {
        // A trace shows no counters, so it does not slow down doorbells unless the user asks for that.
        let dear = hook.role == Role::Write && !self.scope.counters();
        self.scope.wants(hook) && (!dear || self.verb_times)
    }

    /// Whether hooks of kernel functions report work requests. Tests can leave all to probes on programs.
    pub(crate) fn kernel_work(&self) -> bool {
        self.work.is_some() && self.datapaths
    }

    /// Whether probes on programs report work requests.
    pub(crate) fn user_work(&self) -> bool {
        self.work.is_some() && self.uprobes.is_some()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 512 << 10,
            fentry: false,
            max_qps: None,
            slots: None,
            known_qps: None,
            scope: Scope::All,
            verb_times: false,
            uprobes: None,
            datapaths: true,
            work: None,
        }
    }
}

/// Programs that may be loaded. A kprobe program is used where the kernel does not accept the fentry program.
pub(crate) fn programs(options: &Options) -> BTreeSet<&'static str> {
    let control = CONTROL_PLANE.iter().filter(|hook| options.wants(hook));
    let hot = datapath::hooks().filter(|_| options.scope.counters());
    let work = WORK_HOOKS.iter().filter(|_| options.kernel_work());
    let each = control.chain(hot).chain(work).flat_map(|hook| {
        let fast = hook.fast.filter(|_| options.fentry);
        let raw = hook.raw.map(|raw| raw.program);
        [Some(hook.program), fast.map(|fast| fast.program), raw]
    });
    let hooks = user::HOOKS.iter().map(|hook| hook.program);
    let user = options.uprobes.map(|wanted| hooks.chain(user::programs(wanted)));
    each.flatten().chain(user.into_iter().flatten()).gather()
}

/// The offsets that the programs of a trace read, so that rdmatop need not read the BTF of drivers. `None` if
/// the programs may read all offsets.
pub(crate) fn read_offsets(options: &Options) -> Option<BTreeSet<&'static str>> {
    if options.scope.counters() || options.kernel_work() || options.uprobes.is_some() {
        return None;
    }
    let loaded = programs(options);
    let hooks = CONTROL_PLANE.iter().filter(|hook| loaded.contains(hook.program));
    let named = hooks.flat_map(Hook::offsets);
    // The other sign matters only where counters are read.
    Some(named.chain([SIGN_OF_TASK_BTF]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::event::EventKind;
    use zerocopy::FromZeros as _;

    #[test]
    fn programs_of_work_requests_are_loaded_only_on_request() {
        let works = |options: &Options| {
            programs(options)
                .iter()
                .filter(|name| name.starts_with("wr_"))
                .count()
        };
        for scope in [
            Scope::All,
            Scope::Events(Vec::new()),
            Scope::Events(vec![EventKind::QpCreate]),
        ] {
            let without = Options {
                scope,
                ..Options::default()
            };
            assert_eq!(works(&without), 0, "{without:?}");
            let with = Options {
                work: Some((WrFilter::new_zeroed(), 4096)),
                ..without.clone()
            };
            assert_eq!(works(&with), WORK_HOOKS.len());
            // The data path stays as it is.
            assert!(programs(&without).is_subset(&programs(&with)));
        }
        let only = Options {
            scope: Scope::Events(vec![EventKind::WrPost, EventKind::WrDone, EventKind::Lost]),
            work: Some((WrFilter::new_zeroed(), 4096)),
            ..Options::default()
        };
        assert_eq!(programs(&only).len(), WORK_HOOKS.len());
    }

    #[test]
    fn a_trace_puts_nothing_on_the_way_of_a_doorbell_unless_asked() {
        let loads = |scope: Scope, verb_times| {
            let options = Options {
                scope,
                verb_times,
                ..Options::default()
            };
            programs(&options).contains("uverbs_write")
        };
        let errors = || Scope::Events(vec![EventKind::VerbError]);
        assert!(!loads(errors(), false) && loads(errors(), true));
        assert!(!loads(Scope::Events(vec![EventKind::QpCreate]), true));
        // Without a data path the programs at `write()` count its calls.
        assert!(loads(Scope::All, false));
    }
}
