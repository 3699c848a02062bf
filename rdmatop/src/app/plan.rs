//! From the command line and the terminal to a mode. Pure.

use std::time::Duration;

use crate::cli::{AttachMode, Cli, Command};
use crate::exit::Stop;
use rdmatop_loader::UserOptions;
use rdmatop_model::{event::EventKind, filter::Filter};
use rdmatop_sources::{hw_counters::HwCounters, root::Root};

/// The output's properties, from the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terminal {
    pub(super) stdout: bool,
    /// `TERM=dumb`: it can show only lines.
    pub(super) dumb: bool,
    pub(super) no_color: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The live view; with `trace` it opens on that tab.
    Live {
        trace: bool,
    },
    Lines,
    /// One sample.
    Once,
    /// Findings, and an exit code.
    Check,
    /// The table of programs.
    Probes,
}

/// Percent of a core that probes on programs may take.
const UPROBE_LIMIT: u32 = 10;

/// A mode and how to run it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    /// Whether the mode prints JSON.
    pub(super) json: bool,
    /// This machine, without the devices of `--exclude-device`.
    pub(super) root: Root,
    pub(super) delay: Duration,
    /// Samples after the first, of the modes that print once.
    pub(super) looks: u64,
    /// `--delay` was given: it takes precedence over saved settings.
    pub(super) delay_given: bool,
    pub(super) duration: Option<Duration>,
    pub(super) filter: Filter,
    pub(super) sort: Option<String>,
    /// `None`: no eBPF.
    pub(super) attach: Option<AttachMode>,
    pub(super) verb_times: bool,
    pub(super) max_qps: Option<u32>,
    /// What `--uprobes` asks for: which programs get probes, and how much of a core these may take.
    pub(super) uprobes: Option<UserOptions>,
    /// How much of a core probes on programs may take, also those that a key switches on.
    pub(super) uprobe_limit: f64,
    pub(super) hw_counters: Option<HwCounters>,
    /// The sample is for processes of a log: it has what they move by TCP, also where there is no RDMA.
    pub(super) beside_log: bool,
    /// Whether GPUs are asked how busy they are.
    pub(super) gpus: bool,
    /// Read no command line and no environment.
    pub(super) mask: bool,
    /// `--sample`: one work request in so many.
    pub(super) sample: u32,
    pub(super) color: bool,
}

impl Plan {
    /// Whether work requests are asked for.
    pub(super) fn wants_work(&self) -> bool {
        self.filter.events.iter().any(|kind| kind.is_on_request())
    }
}

/// Chooses the mode. A usage error names the way out.
pub(super) fn plan(cli: &Cli, terminal: Terminal) -> Result<Plan, Stop> {
    let view = &cli.view;
    let mut attach = (!view.no_ebpf).then(|| view.attach.unwrap_or_default());
    let mut verb_times = view.verb_times;
    let mut looks = 1;
    let mut json = view.json;
    let (mut exclude, mut delay, mut gpus) = (&view.exclude, view.delay(), !view.no_gpus);
    let mut filter = Filter {
        pid: view.pid,
        comm: view.comm.clone(),
        device: view.device.clone(),
        qpn: view.qpn,
        events: view.event_kinds().unwrap_or_default(),
    };
    let mode = match &cli.command {
        Some(Command::Check(args)) => {
            looks = args.seconds.as_secs().max(1);
            filter.device.clone_from(&args.device);
            filter.pid = args.pid;
            attach = (!args.no_ebpf).then(AttachMode::default);
            json = args.json;
            (exclude, gpus) = (&args.exclude, !args.no_gpus);
            Mode::Check
        }
        Some(Command::Probes(args)) => {
            verb_times = args.verb_times;
            attach = Some(args.attach.unwrap_or_default());
            json = args.json;
            Mode::Probes
        }
        Some(Command::NcclLog(args)) => {
            attach = (!args.no_ebpf).then(AttachMode::default);
            json = args.json;
            // Rates are those of the whole look. It shows nothing of GPUs.
            (exclude, delay, gpus) = (&args.exclude, args.seconds, false);
            Mode::Once
        }
        // The other commands have no view and no plan.
        Some(Command::Lab(_) | Command::Doctor(_) | Command::Man { .. } | Command::Completions { .. })
        | None => view_mode(cli, terminal)?,
    };
    let root = exclude.root();
    let uprobe_limit = f64::from(view.uprobe_limit.unwrap_or(UPROBE_LIMIT)) / 100.0;
    if view.uprobe_limit.is_some() && view.uprobes.is_none() && !matches!(mode, Mode::Live { .. }) {
        return Err(Stop::usage(
            "--uprobe-limit is for --uprobes, and for the key U of the live view; see rdmatop --help",
        ));
    }
    let uprobes = view.uprobes.map(|pid| UserOptions {
        pid,
        limit: uprobe_limit,
        ends: filter.events.contains(&EventKind::WrDone),
    });
    let beside_log = matches!(cli.command, Some(Command::NcclLog(_)));
    let plan = Plan {
        mode,
        json,
        delay,
        looks,
        delay_given: view.delay.is_some(),
        duration: view.duration,
        filter,
        sort: view.sort.clone(),
        attach,
        verb_times,
        max_qps: view.max_qps,
        uprobes,
        uprobe_limit,
        hw_counters: view.hw_counters.then(|| HwCounters::new(root.clone())),
        beside_log,
        // Other modes show nothing of GPUs.
        gpus: gpus && matches!(mode, Mode::Live { .. } | Mode::Once | Mode::Check),
        mask: view.mask,
        sample: view.sample.unwrap_or(1),
        root,
        color: !view.no_color && !terminal.no_color,
    };
    if view.trace && plan.uprobes.is_some() && !plan.wants_work() {
        return Err(Stop::usage(
            "--uprobes shows work requests in a trace: add --event wr; see rdmatop --help",
        ));
    }
    if view.sample.is_some() && !plan.wants_work() {
        return Err(Stop::usage(
            "--sample is for work requests: add --event wr; see rdmatop --help",
        ));
    }
    Ok(plan)
}

fn view_mode(cli: &Cli, terminal: Terminal) -> Result<Mode, Stop> {
    let view = &cli.view;
    let screen = terminal.stdout && !terminal.dumb;
    if view.once {
        return Ok(Mode::Once);
    }
    if view.trace {
        return Ok(if screen && !view.json {
            Mode::Live { trace: true }
        } else {
            Mode::Lines
        });
    }
    if view.json {
        return Err(Stop::usage(
            "--json needs --once (the snapshot) or --trace (one object per event); see rdmatop --help",
        ));
    }
    if !screen {
        let why = if terminal.stdout {
            "TERM is dumb"
        } else {
            "stdout is none"
        };
        return Err(Stop::usage(format!(
            "the live view needs a terminal and {why}; use rdmatop --once for one sample or rdmatop --trace for \
             event lines"
        )));
    }
    Ok(Mode::Live { trace: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use clap::Parser;

    const SCREEN: Terminal = Terminal {
        stdout: true,
        dumb: false,
        no_color: false,
    };
    const PIPE: Terminal = Terminal {
        stdout: false,
        dumb: false,
        no_color: false,
    };

    fn of(args: &[&str], terminal: Terminal) -> Result<Plan, Stop> {
        let cli = Cli::try_parse_from(["rdmatop"].iter().chain(args)).unwrap();
        plan(&cli, terminal)
    }

    #[test]
    fn a_trace_is_a_tab_on_a_terminal_and_lines_elsewhere() {
        assert_eq!(of(&["--trace"], SCREEN).unwrap().mode, Mode::Live { trace: true });
        let lines = |args: &[&str], terminal| {
            let plan = of(args, terminal).unwrap();
            (plan.mode, plan.json)
        };
        assert_eq!(lines(&["--trace"], PIPE), (Mode::Lines, false));
        assert_eq!(lines(&["--trace", "--json"], SCREEN), (Mode::Lines, true));
        let dumb = Terminal { dumb: true, ..SCREEN };
        assert_eq!(lines(&["--trace"], dumb), (Mode::Lines, false));
    }

    #[test]
    fn how_long_is_the_same_option_everywhere_and_its_old_names_work() {
        for args in [
            &["--for", "3"][..],
            &["--duration", "3"],
            &["check", "--for", "3"],
            &["nccl-log", "--for", "3"],
            &["lab", "run", "rnr", "--for", "3"],
            &["lab", "run", "rnr", "--seconds", "3"],
        ] {
            assert!(
                Cli::try_parse_from(["rdmatop"].iter().chain(args)).is_ok(),
                "{args:?}"
            );
        }
        let help = crate::cli::command().render_long_help().to_string();
        assert!(!help.contains("--duration"), "{help}");
        for command in ["man", "completions"] {
            assert!(help.contains(&format!("\n  {command} ")), "{help}");
        }
    }

    #[test]
    fn a_live_view_without_a_terminal_is_refused_with_the_way_out() {
        for terminal in [PIPE, Terminal { dumb: true, ..SCREEN }] {
            let stop = of(&[], terminal).unwrap_err();
            assert_eq!(stop.exit, Exit::Usage);
            assert!(
                stop.line.contains("--once") && stop.line.contains("--trace"),
                "{stop}"
            );
        }
        assert_eq!(of(&[], SCREEN).unwrap().mode, Mode::Live { trace: false });
    }

    #[test]
    fn json_alone_is_refused() {
        assert_eq!(of(&["--json"], SCREEN).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn the_filter_is_the_same_in_every_mode() {
        for mode in [&["--once"][..], &["--trace"], &[]] {
            let args = [mode, &["--pid", "7", "--comm", "x", "--device", "rxe0"]].concat();
            let filter = of(&args, SCREEN).unwrap().filter;
            assert_eq!(
                (filter.pid, filter.comm.as_deref(), filter.device.as_deref()),
                (Some(7), Some("x"), Some("rxe0"))
            );
        }
        let events = of(&["--trace", "--event", "cq,qp_error"], PIPE)
            .unwrap()
            .filter
            .events;
        assert_eq!(
            events,
            [
                EventKind::QpError,
                EventKind::CqCreate,
                EventKind::CqDestroy,
                EventKind::Lost
            ]
        );
    }

    #[test]
    fn work_requests_are_asked_for_by_name_and_only_they_are_sampled() {
        let wants = |args: &[&str]| of(args, PIPE).unwrap().wants_work();
        assert!(!wants(&["--trace"]) && !wants(&["--trace", "--event", "qp,mr,cq,cm,verb_error"]));
        for kinds in ["wr", "wr_post", "wr_done", "qp,wr_done"] {
            assert!(wants(&["--trace", "--event", kinds]), "{kinds}");
        }
        let plan = of(
            &["--trace", "--event", "wr", "--sample", "10", "--qpn", "17"],
            PIPE,
        )
        .unwrap();
        assert_eq!((plan.sample, plan.filter.qpn), (10, Some(17)));
        let probed = of(&["--trace", "--event", "wr_post", "--uprobes=7"], PIPE).unwrap();
        assert_eq!(probed.uprobes.and_then(|wanted| wanted.pid), Some(7));
        for args in [
            &["--trace", "--uprobes"][..],
            &["--trace", "--uprobes", "--event", "qp"],
        ] {
            let refused = of(args, PIPE).unwrap_err();
            assert_eq!(refused.exit, Exit::Usage);
            assert!(refused.line.contains("--event wr"), "{refused}");
        }
        let refused = of(&["--trace", "--sample", "10"], PIPE).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.line.contains("--event wr"), "{refused}");
    }

    #[test]
    fn colors_yield_to_the_option_and_to_the_environment() {
        assert!(of(&[], SCREEN).unwrap().color);
        assert!(!of(&["--no-color"], SCREEN).unwrap().color);
        assert!(
            !of(
                &[],
                Terminal {
                    no_color: true,
                    ..SCREEN
                }
            )
            .unwrap()
            .color
        );
    }

    #[test]
    fn no_ebpf_means_none_and_probes_always_wants_some() {
        assert_eq!(of(&["--no-ebpf"], SCREEN).unwrap().attach, None);
        assert!(!of(&[], SCREEN).unwrap().verb_times);
        assert_eq!(of(&[], SCREEN).unwrap().uprobes, None);
        let probes = |args: &[&str]| of(args, SCREEN).unwrap().uprobes.unwrap();
        assert_eq!(
            probes(&["--uprobes"]),
            UserOptions {
                pid: None,
                limit: 0.1,
                ends: false,
            }
        );
        assert_eq!(
            probes(&["--uprobes=7", "--uprobe-limit", "250"]),
            UserOptions {
                pid: Some(7),
                limit: 2.5,
                ends: false,
            }
        );
        for args in [
            &["--uprobes", "--no-ebpf"][..],
            &["--uprobes=x"],
            &["--uprobes", "--uprobe-limit", "0"],
        ] {
            let all = ["rdmatop"].iter().chain(args);
            assert!(Cli::try_parse_from(all).is_err(), "{args:?}");
        }
        let limited = &["--uprobe-limit", "3"];
        assert!((of(limited, SCREEN).unwrap().uprobe_limit - 0.03).abs() < 1e-9);
        assert_eq!(of(limited, PIPE).unwrap_err().exit, Exit::Usage);
        for args in [&["--verb-times"][..], &["probes", "--verb-times"]] {
            assert!(of(args, SCREEN).unwrap().verb_times);
        }
        assert_eq!(of(&["probes"], PIPE).unwrap().attach, Some(AttachMode::Auto));
        assert_eq!(
            of(&["--attach", "fentry"], SCREEN).unwrap().attach,
            Some(AttachMode::Fentry)
        );
    }
}
