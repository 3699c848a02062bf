//! Which programs to attach, decided from facts and without touching the kernel.

use std::collections::{BTreeSet, HashMap};

use super::skipped::Skip;
use crate::model::input::{ProbeVerdict, Verdict};

/// How a program is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// At a function's first instruction.
    Kprobe,
    /// At a function's return.
    Kretprobe,
    /// At a function's first instruction, through its BTF.
    Fentry,
    /// At a function's return, through its BTF.
    Fexit,
    /// At a tracepoint of a category.
    Tracepoint {
        /// Category, a directory under tracefs' events.
        category: &'static str,
    },
}

/// A program, what it hooks and what for.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Name in the object.
    pub program: &'static str,
    /// How.
    pub entry: Entry,
    /// Function or tracepoint.
    pub symbol: &'static str,
    /// Module that has it.
    pub module: &'static str,
    /// The driver whose work it counts: without that module it has nothing to see, wherever its function is.
    pub driver: Option<&'static str>,
    /// What the user gets from it.
    pub gives: &'static str,
    /// Offsets without which it is pointless.
    pub needs: &'static [&'static str],
    /// Offsets that make single readings; without them those show as unknown.
    pub wants: &'static [&'static str],
}

/// Where every `write()` to a verbs file enters, doorbells of SoftRoCE and siw among them.
pub const WRITE_ENTRY: &str = "ib_uverbs_write";

/// Why [`WRITE_ENTRY`] is left alone beside a data path. The price is measured: `cargo xtask bench --only G6`.
pub const WRITE_LEFT: &str = "off: it costs each post 1500 instructions more, of some 3800. The data path counts post_send, \
                              without errors and times; --verb-times turns this on";

/// How a reason begins that members without an offset are.
pub const NO_BTF: &str = "no BTF for ";

const IDENTITY: &[&str] = &["OFF_QP_NUM", "OFF_QP_DEVICE"];
const OWNER: &[&str] = &["OFF_RES_TASK", "OFF_TASK_TGID", "OFF_DEV_NAME"];
const fn kprobe(
    program: &'static str,
    symbol: &'static str,
    module: &'static str,
    gives: &'static str,
) -> Hook {
    Hook {
        program,
        entry: Entry::Kprobe,
        symbol,
        module,
        driver: None,
        gives,
        needs: &[],
        wants: OWNER,
    }
}
const fn kretprobe(
    program: &'static str,
    symbol: &'static str,
    module: &'static str,
    gives: &'static str,
) -> Hook {
    Hook {
        program,
        entry: Entry::Kretprobe,
        symbol,
        module,
        driver: None,
        gives,
        needs: &[],
        wants: &[],
    }
}
const fn tracepoint(
    program: &'static str,
    symbol: &'static str,
    gives: &'static str,
    needs: &'static [&'static str],
) -> Hook {
    Hook {
        program,
        entry: Entry::Tracepoint { category: "rdma_cma" },
        symbol,
        module: "rdma_cm",
        driver: None,
        gives,
        needs,
        wants: &[],
    }
}

/// The control plane: any provider, by kprobe, which pins no module. What can be entered otherwise: [`super::fast`].
pub const CONTROL_PLANE: &[Hook] = &[
    // Return probes stand before their entry: were the order the other way round, a call could be remembered
    // whose return nobody sees. They need what their entry needs: alone they see no call.
    Hook {
        needs: IDENTITY,
        ..kretprobe(
            "modify_qp_ret",
            "_ib_modify_qp",
            "ib_core",
            "QP state changes, errno and duration",
        )
    },
    Hook {
        needs: IDENTITY,
        wants: &[
            "OFF_ATTR_STATE",
            "OFF_ATTR_PATH_MTU",
            "OFF_ATTR_DEST_QPN",
            "OFF_ATTR_SGID_INDEX",
            "OFF_ATTR_DGID",
            "OFF_ATTR_AH_FLAGS",
        ],
        ..kprobe(
            "modify_qp",
            "_ib_modify_qp",
            "ib_core",
            "QP state changes, attributes",
        )
    },
    Hook {
        needs: IDENTITY,
        ..kretprobe(
            "destroy_qp_ret",
            "ib_destroy_qp_user",
            "ib_core",
            "QP destroy, errno and duration",
        )
    },
    Hook {
        needs: IDENTITY,
        ..kprobe("destroy_qp", "ib_destroy_qp_user", "ib_core", "QP destroy")
    },
    Hook {
        needs: &["OFF_MR_LENGTH"],
        ..kretprobe(
            "dereg_mr_ret",
            "ib_dereg_mr_user",
            "ib_core",
            "MR deregistration, errno and duration",
        )
    },
    Hook {
        needs: &["OFF_MR_LENGTH"],
        ..kprobe("dereg_mr", "ib_dereg_mr_user", "ib_core", "MR deregistration")
    },
    kretprobe(
        "destroy_cq_ret",
        "ib_destroy_cq_user",
        "ib_core",
        "CQ destroy, errno and duration",
    ),
    kprobe("destroy_cq", "ib_destroy_cq_user", "ib_core", "CQ destroy"),
    kprobe(
        "free_cq",
        "ib_free_cq",
        "ib_core",
        "CQ destroy of kernel consumers",
    ),
    Hook {
        needs: &["OFF_RES_TYPE", "OFF_QP_RES", "OFF_QP_NUM"],
        wants: &[
            "OFF_RES_TASK",
            "OFF_TASK_TGID",
            "OFF_DEV_NAME",
            "OFF_MR_RES",
            "OFF_MR_LENGTH",
            "OFF_CQ_RES",
        ],
        ..kprobe(
            "restrack_add",
            "rdma_restrack_add",
            "ib_core",
            "QP, MR and CQ creation with owner",
        )
    },
    Hook {
        needs: &["OFF_EVENT_ELEMENT", "OFF_EVENT_EVENT"],
        ..kprobe(
            "qp_event",
            "ib_uverbs_qp_event_handler",
            "ib_uverbs",
            "asynchronous QP events",
        )
    },
    kretprobe(
        "cmd_verbs_ret",
        "ib_uverbs_cmd_verbs",
        "ib_uverbs",
        "verb calls, errno and duration",
    ),
    Hook {
        wants: &["OFF_UFILE_DEVICE", "OFF_UDEV_IB_DEV"],
        ..kprobe("cmd_verbs", "ib_uverbs_cmd_verbs", "ib_uverbs", "verb calls")
    },
    kretprobe(
        "uverbs_write_ret",
        WRITE_ENTRY,
        "ib_uverbs",
        "post_send and other write() commands, errno and duration",
    ),
    Hook {
        wants: &[],
        ..kprobe("uverbs_write", WRITE_ENTRY, "ib_uverbs", "write() commands")
    },
    // A wait for an event stays inside as long as there is none, and the kernel keeps max(10, twice the CPUs) returns of
    // one probe in flight (`register_kretprobe`): where more threads wait, other calls are missed meanwhile, and counted
    // as that. The functions below ucma_write would not wait, but they are twenty.
    kretprobe(
        "ucma_write_ret",
        "ucma_write",
        "rdma_ucm",
        "rdma_cm verbs, errno and duration",
    ),
    Hook {
        wants: &[],
        ..kprobe("ucma_write", "ucma_write", "rdma_ucm", "rdma_cm verbs")
    },
    Hook {
        needs: &["OFF_IDPRIV_RES", "OFF_RES_ID"],
        ..kprobe(
            "cm_handler",
            "cma_cm_event_handler",
            "rdma_cm",
            "owner of rdma_cm events",
        )
    },
    tracepoint(
        "cm_event",
        "cm_event_handler",
        "rdma_cm events",
        &["TP_EVENT_CM_ID", "TP_EVENT_EVENT"],
    ),
    tracepoint("cm_send_req", "cm_send_req", "rdma_cm connect", &["TP_REQ_CM_ID"]),
    tracepoint("cm_send_rep", "cm_send_rep", "rdma_cm accept", &["TP_REP_CM_ID"]),
    tracepoint("cm_send_rej", "cm_send_rej", "rdma_cm reject", &["TP_REJ_CM_ID"]),
    tracepoint(
        "cm_disconnect",
        "cm_disconnect",
        "rdma_cm disconnect",
        &["TP_DISC_CM_ID"],
    ),
];

/// What it costs when the kernel skips a program.
pub fn when_skipped(hook: &Hook) -> Skip {
    match (hook.entry, hook.program) {
        (_, "cmd_verbs_ret" | "uverbs_write_ret" | "ucma_write_ret") => Skip::Count,
        (Entry::Kretprobe | Entry::Fexit, _) => Skip::Return,
        // What their returns count; an owner that another event of the same id brings; a QP that the next doorbell
        // or completion shows.
        (
            _,
            "modify_qp" | "destroy_qp" | "dereg_mr" | "destroy_cq" | "cmd_verbs" | "uverbs_write"
            | "ucma_write" | "cm_handler" | "query_qp",
        ) => Skip::Nothing,
        _ if CONTROL_PLANE
            .iter()
            .any(|control| control.program == hook.program) =>
        {
            Skip::Record
        }
        _ => Skip::Count,
    }
}

/// What it may have cost the numbers when the kernel skipped a program, in words that follow its name.
pub fn cost(hook: &Hook) -> String {
    match hook.program {
        // It reads what it counts from the rings and the QP, so its next run makes good what this one would have: but for
        // a wait of which each visit was skipped, and for a ring that went round meanwhile.
        "kp_completer" => {
            "post-to-completion times may be too long; a wait for a receiver, or a whole ring of WRs, may be \
                           missing"
                .to_owned()
        }
        "kp_post_send" => "doorbells, and calls of post_send, may be short by as many".to_owned(),
        "rxe_queue_end" => {
            "what as many queues did just before they were destroyed may be missing".to_owned()
        }
        _ if when_skipped(hook) == Skip::Count => format!("short by as many may be: {}", hook.gives),
        _ => format!("as many events may be missing: {}", hook.gives),
    }
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Modules in /proc/modules or built in.
    pub modules: BTreeSet<String>,
    /// Functions in /proc/kallsyms, of those asked for, and how many there are of that name; `None` on a kernel that
    /// itself refuses a name that is not there or not alone.
    pub symbols: Option<HashMap<String, usize>>,
    /// Why tracefs cannot be read, and the remedy.
    pub without_tracefs: Option<&'static str>,
    /// Why the kernel can preempt an fentry program; `None` when it cannot.
    pub preempts: Option<String>,
    /// Globals that have an offset.
    pub offsets: BTreeSet<&'static str>,
}

/// What the plan says of one program.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Attach; the text names readings that will be unknown.
    Attach(Option<String>),
    /// Do not, and why.
    Leave(Verdict, String),
}

/// Why the programs of a driver's data path are left out. It names no driver: on a machine without it, its name is noise.
pub const NO_DRIVER: &str = "the driver whose work requests it counts is not loaded";

/// Decides on one program.
pub fn decide(hook: &Hook, facts: &Facts) -> Decision {
    if hook.driver.is_some_and(|driver| !facts.modules.contains(driver)) {
        return Decision::Leave(Verdict::NotApplicable, NO_DRIVER.to_owned());
    }
    if !facts.modules.contains(hook.module) {
        return Decision::Leave(Verdict::NotApplicable, format!("{} is not loaded", hook.module));
    }
    if let Entry::Tracepoint { category } = hook.entry {
        if let Some(why) = facts.without_tracefs {
            return Decision::Leave(Verdict::Unsupported, why.into());
        }
        if let Some(missing) = hook.needs.iter().find(|name| !facts.offsets.contains(*name)) {
            let why = format!("{category}:{} has no such field here ({missing})", hook.symbol);
            return Decision::Leave(Verdict::Unsupported, why);
        }
        return Decision::Attach(None);
    }
    if let Some(symbols) = &facts.symbols {
        match symbols.get(hook.symbol) {
            None | Some(0) => return Decision::Leave(Verdict::Unsupported, absent(hook)),
            Some(1) => {}
            Some(_) => return Decision::Leave(Verdict::Unsupported, ambiguous(hook)),
        }
    }
    let missing: Vec<_> = hook
        .needs
        .iter()
        .filter(|name| !facts.offsets.contains(*name))
        .copied()
        .collect();
    if !missing.is_empty() {
        return Decision::Leave(Verdict::Unsupported, format!("{NO_BTF}{}", members(&missing)));
    }
    let off: Vec<_> = hook
        .wants
        .iter()
        .filter(|name| !facts.offsets.contains(*name))
        .copied()
        .collect();
    Decision::Attach((!off.is_empty()).then(|| format!("{NO_BTF}{}", members(&off))))
}

/// Why a hook is not attached whose function the kernel does not have.
pub fn absent(hook: &Hook) -> String {
    format!("this kernel has no function {}", hook.symbol)
}

/// Why a hook is not attached whose function's name stands for several.
pub fn ambiguous(hook: &Hook) -> String {
    format!(
        "this kernel has several functions named {}: which one is meant is unknown",
        hook.symbol
    )
}

/// Spells globals as the members they stand for.
fn members(globals: &[&str]) -> String {
    let spell = |global: &&str| {
        rdmatop_common::offsets::OFFSETS
            .iter()
            .find(|o| o.global == *global)
            .map_or_else(|| (*global).to_owned(), |o| format!("{}.{}", o.ty, o.member))
    };
    globals.iter().map(spell).collect::<Vec<_>>().join(", ")
}

/// A verdict line for a hook.
pub fn verdict(hook: &Hook, verdict: Verdict, reason: Option<String>) -> ProbeVerdict {
    let how = match hook.entry {
        Entry::Kprobe => "kprobe".to_owned(),
        Entry::Kretprobe => "kretprobe".to_owned(),
        Entry::Fentry => "fentry".to_owned(),
        Entry::Fexit => "fexit".to_owned(),
        Entry::Tracepoint { category } => format!("tracepoint:{category}"),
    };
    ProbeVerdict {
        program: hook.program.to_owned(),
        hook: format!("{how}:{}", hook.symbol),
        gives: hook.gives.to_owned(),
        verdict,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            modules: ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"]
                .map(String::from)
                .into(),
            symbols: Some(CONTROL_PLANE.iter().map(|h| (h.symbol.to_owned(), 1)).collect()),
            without_tracefs: None,
            preempts: None,
            offsets: CONTROL_PLANE
                .iter()
                .flat_map(|h| h.needs.iter().chain(h.wants))
                .copied()
                .collect(),
        }
    }

    fn hook(program: &str) -> &'static Hook {
        CONTROL_PLANE.iter().find(|h| h.program == program).unwrap()
    }

    #[test]
    fn with_everything_there_everything_is_attached() {
        for hook in CONTROL_PLANE {
            assert_eq!(decide(hook, &facts()), Decision::Attach(None), "{}", hook.program);
        }
    }

    #[test]
    fn a_module_that_is_not_loaded_is_not_a_fault() {
        let mut facts = facts();
        facts.modules.remove("rdma_cm");
        assert!(matches!(
            decide(hook("cm_event"), &facts),
            Decision::Leave(Verdict::NotApplicable, _)
        ));
        assert_eq!(decide(hook("modify_qp"), &facts), Decision::Attach(None));
    }

    /// Every set of the modules that hooks name.
    fn module_sets() -> impl Iterator<Item = BTreeSet<String>> {
        let hooks = || CONTROL_PLANE.iter().chain(super::super::datapath::hooks());
        let named: BTreeSet<&str> = hooks()
            .flat_map(|h| [Some(h.module), h.driver])
            .flatten()
            .collect();
        let named: Vec<&str> = named.into_iter().collect();
        (0..1_u32 << named.len()).map(move |bits| {
            let chosen = named.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            chosen.map(|(_, name)| (*name).to_owned()).collect()
        })
    }

    #[test]
    fn a_program_is_applicable_where_its_function_and_its_driver_are_and_nowhere_else() {
        use super::super::datapath;
        for modules in module_sets() {
            // A kernel that has BTF of nothing: what is not applicable must not be blamed on that.
            let facts = Facts {
                modules,
                ..Facts::default()
            };
            for hook in CONTROL_PLANE.iter().chain(datapath::hooks()) {
                let there = [Some(hook.module), hook.driver];
                let there = there.iter().flatten().all(|name| facts.modules.contains(*name));
                let decision = decide(hook, &facts);
                let applicable = !matches!(decision, Decision::Leave(Verdict::NotApplicable, _));
                assert_eq!(
                    applicable, there,
                    "{} with {:?}: {decision:?}",
                    hook.program, facts.modules
                );
            }
        }
    }

    #[test]
    fn without_a_driver_nothing_is_said_of_it() {
        use super::super::{datapath, unseen};
        let words = ["rxe", "softroce"];
        for modules in module_sets().filter(|set| !set.contains("rdma_rxe")) {
            let facts = Facts {
                modules,
                ..Facts::default()
            };
            let hooks = CONTROL_PLANE.iter().chain(datapath::hooks());
            let verdicts: Vec<_> = hooks
                .map(|hook| match decide(hook, &facts) {
                    Decision::Leave(of, why) => verdict(hook, of, Some(why)),
                    Decision::Attach(off) => verdict(hook, Verdict::Ok, off),
                })
                .collect();
            let reasons = verdicts.iter().filter_map(|verdict| verdict.reason.clone());
            let notes = unseen::notes(&verdicts, false)
                .into_iter()
                .map(|note| note.to_string());
            for line in reasons.chain(notes) {
                let small = line.to_lowercase();
                assert!(!words.iter().any(|word| small.contains(word)), "{line}");
            }
        }
    }

    #[test]
    fn a_name_that_stands_twice_is_not_guessed_at() {
        let mut facts = facts();
        if let Some(symbols) = &mut facts.symbols {
            symbols.insert("_ib_modify_qp".into(), 2);
            symbols.remove("ib_destroy_qp_user");
        }
        for program in ["modify_qp", "destroy_qp"] {
            assert!(matches!(
                decide(hook(program), &facts),
                Decision::Leave(Verdict::Unsupported, _)
            ));
        }
        // A kernel that looks itself is asked by attaching.
        facts.symbols = None;
        assert_eq!(decide(hook("modify_qp"), &facts), Decision::Attach(None));
    }

    #[test]
    fn a_missing_member_is_named_as_the_kernel_spells_it() {
        let mut facts = facts();
        facts.offsets.remove("OFF_QP_NUM");
        let Decision::Leave(Verdict::Unsupported, why) = decide(hook("destroy_qp"), &facts) else {
            panic!()
        };
        assert_eq!(why, "no BTF for ib_qp.qp_num");
        let mut facts = self::facts();
        facts.offsets.remove("OFF_ATTR_PATH_MTU");
        let Decision::Attach(Some(off)) = decide(hook("modify_qp"), &facts) else {
            panic!()
        };
        assert_eq!(off, "no BTF for ib_qp_attr.path_mtu");
    }

    #[test]
    fn each_skipped_call_has_one_program_that_counts_it() {
        let skip = |program: &str| when_skipped(hook(program));
        assert_eq!(skip("modify_qp_ret"), Skip::Return);
        assert_eq!(skip("modify_qp"), Skip::Nothing);
        assert_eq!(skip("restrack_add"), Skip::Record);
        assert_eq!(skip("cm_event"), Skip::Record);
        for verbs in ["cmd_verbs", "uverbs_write", "ucma_write"] {
            assert_eq!(skip(verbs), Skip::Nothing);
            assert_eq!(skip(&format!("{verbs}_ret")), Skip::Count);
        }
        for hot in super::super::datapath::hooks() {
            let wanted = if hot.program == "query_qp" {
                Skip::Nothing
            } else {
                Skip::Count
            };
            assert_eq!(when_skipped(hot), wanted, "{}", hot.program);
        }
    }

    #[test]
    fn a_skip_that_costs_something_says_which_numbers_or_events() {
        let words = |program: &str| {
            let mut hooks = CONTROL_PLANE.iter().chain(super::super::datapath::hooks());
            cost(hooks.find(|hook| hook.program == program).unwrap())
        };
        assert_eq!(words("kp_xmit"), "short by as many may be: retransmitted packets");
        assert_eq!(
            words("modify_qp_ret"),
            "as many events may be missing: QP state changes, errno and duration"
        );
        assert!(words("cmd_verbs_ret").starts_with("short by as many"));
        // What the next visit makes good is not said to be short.
        assert!(!words("kp_completer").contains("short"));
    }

    #[test]
    fn a_return_is_left_out_with_its_entry() {
        let returns = CONTROL_PLANE.iter().filter(|hook| hook.entry == Entry::Kretprobe);
        for back in returns {
            let mut entries = CONTROL_PLANE.iter().filter(|hook| hook.entry == Entry::Kprobe);
            let entry = entries.find(|hook| hook.symbol == back.symbol).unwrap();
            assert_eq!(back.needs, entry.needs, "{}", back.program);
        }
    }

    #[test]
    fn every_offset_a_hook_names_exists() {
        use rdmatop_common::offsets::{OFFSETS, TRACEPOINT_FIELDS};
        let known: BTreeSet<_> = OFFSETS
            .iter()
            .map(|o| o.global)
            .chain(TRACEPOINT_FIELDS.iter().map(|f| f.global))
            .collect();
        for hook in CONTROL_PLANE.iter().chain(super::super::datapath::hooks()) {
            for name in hook.needs.iter().chain(hook.wants) {
                assert!(known.contains(name), "{} names {name}", hook.program);
            }
        }
    }
}
