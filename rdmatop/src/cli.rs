//! The command line. Pure: nothing here looks at the machine.

use std::{path::PathBuf, time::Duration};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use rdmatop_base::exclude::Excluded;
use rdmatop_model::{event::EventKind, fields};
use rdmatop_sources::root::Root;

/// The most QPs that can be asked for: 3 GiB of kernel memory, where work requests are counted there.
pub const MOST_QPS: u32 = 1 << 20;

/// The text below the options in `--help` and in the man page.
const AFTER_HELP: &str = "\
Exit status:
  0  done; also when the reader of a pipe went away, and after SIGINT or SIGTERM
  1  failure, and an unknown --device or --pid
  2  usage error
  3  nothing to show: this machine has no RDMA
rdmatop check and rdmatop doctor have their own: see their --help

Environment:
  NO_COLOR  when set and not empty: as --no-color";

/// The text below the options in `check --help` and in its man page.
const CHECK_HELP: &str = "\
Exit status:
  0  nothing is wrong; what may be meant so is named
  1  warnings: it works worse than it could
  2  critical: something does not work
  3  unknown: nothing is wrong in ports and states of QPs, and without eBPF the rest could
     not be judged; or nothing could be examined: no RDMA, every device is left alone or does
     not answer, a failure, a usage error";

/// The version with the name of the package, because another program is called rdmatop, too.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (rdmatop-bpf)");

/// htop for RDMA, augmented by eBPF.
#[derive(Clone, Debug, Parser)]
#[command(name = "rdmatop", bin_name = "rdmatop", version = VERSION, about = "htop for RDMA, augmented by eBPF", after_help = AFTER_HELP)]
#[command(
    long_about = "Shows which devices, processes and queue pairs move data over RDMA, and what the queue pairs go \
                  through. Without options: a live view. Counters come from RDMA netlink and /sys; with the rights \
                  for it (root, or CAP_BPF and CAP_PERFMON) also from eBPF programs."
)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Cli {
    /// A command instead of a view.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of the views.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Options of the live view, `--once` and `--trace`.
#[derive(Clone, Debug, Args)]
pub struct ViewArgs {
    /// Follow events: on a terminal the live view's trace tab, otherwise one line per event
    #[arg(long, conflicts_with = "no_ebpf", help_heading = "Mode")]
    pub trace: bool,

    /// Measure once over --delay (Ctrl-C ends it early), print, and exit
    #[arg(long, conflicts_with = "trace", help_heading = "Mode")]
    pub once: bool,

    /// Print JSON: the snapshot with --once, one object per event with --trace
    #[arg(long, help_heading = "Mode")]
    pub json: bool,

    /// Seconds between two measurements, 0.1 to 3600 [default: 1]
    #[arg(
        short, long, value_name = "SECS", value_parser = |text: &str| seconds(text, 0.1, 3600.0),
        allow_negative_numbers = true
    )]
    pub delay: Option<Duration>,

    /// End by itself after so many seconds; a trace counts them from when its programs are attached
    #[arg(
        long = "for", alias = "duration", value_name = "SECS", conflicts_with = "once", allow_negative_numbers = true,
        // Bounded by a year, so that deadlines cannot overflow a clock.
        value_parser = |text: &str| seconds(text, 0.1, 31_536_000.0)
    )]
    pub duration: Option<Duration>,

    /// Sort processes by this column: numbers from the largest, names and the PID from the smallest [default:
    /// tx]
    #[arg(long, value_name = "COL", conflicts_with = "trace", value_parser = sort_words())]
    pub sort: Option<String>,

    /// No colors
    #[arg(long)]
    pub no_color: bool,

    /// Only this RDMA device
    #[arg(long, value_name = "NAME", value_parser = name, help_heading = "Filters")]
    pub device: Option<String>,

    /// Devices that are left alone.
    #[command(flatten)]
    pub exclude: ExcludeArgs,

    /// Only this process
    #[arg(long, value_name = "PID", value_parser = pid, help_heading = "Filters", allow_negative_numbers = true)]
    pub pid: Option<u32>,

    /// Only processes of this name, as ps -o comm shows it
    #[arg(long, value_name = "NAME", value_parser = name, help_heading = "Filters")]
    pub comm: Option<String>,

    /// Only this QP number
    #[arg(long, value_name = "QPN", help_heading = "Filters")]
    pub qpn: Option<u32>,

    /// Only these events: qp_create, qp_modify, ..., or a family: qp, mr, cq, devx, cm, wr, finding; lost
    /// records always show. Work requests (wr_post, wr_done; SoftRoCE, and with --uprobes NICs that bypass
    /// the kernel) show only when named here: each makes its post dearer
    #[arg(
        long, value_name = "KIND[,KIND]", value_delimiter = ',', value_parser = event_selector,
        conflicts_with = "once", help_heading = "Filters"
    )]
    pub event: Vec<EventSelector>,

    /// Of work requests (--event wr) one in N, by their number on the QP; those left out are counted
    #[arg(
        long, value_name = "N", conflicts_with = "once", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Filters"
    )]
    pub sample: Option<u32>,

    /// How programs are attached: auto takes kprobe; fentry costs the traced program less and keeps the RDMA
    /// modules that it enters from being unloaded meanwhile [default: auto]
    #[arg(long, value_name = "HOW", conflicts_with = "no_ebpf", help_heading = "eBPF")]
    pub attach: Option<AttachMode>,

    /// Times and errors of post_send, and of what else comes by write(), where posts are counted too: costs
    /// each of those some 1500 instructions more
    #[arg(long, conflicts_with = "no_ebpf", help_heading = "eBPF")]
    pub verb_times: bool,

    /// Make room for so many QPs: for each 3 KiB of kernel memory where SoftRoCE or soft iWARP is loaded, 32
    /// bytes elsewhere. Without this: for twice as many as there are at the start, and for 256 or 16384 at
    /// least
    #[arg(
        long, value_name = "N", conflicts_with = "no_ebpf",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_QPS)), help_heading = "eBPF"
    )]
    pub max_qps: Option<u32>,

    /// Count work requests whose posts bypass the kernel, by probes on the programs that post them: of all,
    /// or of one process; costs these programs about a microsecond for each post. In a trace with --event wr,
    /// print them
    #[arg(
        long, value_name = "PID", value_parser = pid, num_args = 0..=1, require_equals = true,
        conflicts_with = "no_ebpf", help_heading = "eBPF"
    )]
    pub uprobes: Option<Option<u32>>,

    /// Remove these probes, or those of the key U, when they take more than so many percent of one core from
    /// all programs together [default: 10]
    #[arg(
        long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with = "no_ebpf", help_heading = "eBPF"
    )]
    pub uprobe_limit: Option<u32>,

    /// Load no eBPF programs: netlink, /sys and /proc only
    #[arg(long, help_heading = "eBPF")]
    pub no_ebpf: bool,

    /// Have NICs that can (mlx5, ionic) count by process: sets mode auto,pid on each port where nothing is
    /// set, says so, and takes it back at the end. Counts QPs that are made meanwhile
    #[arg(long, conflicts_with = "trace", help_heading = "Counters of the NIC")]
    pub hw_counters: bool,

    /// Do not ask NVIDIA GPUs how busy they are. While rdmatop asks, it has their driver open: the driver
    /// cannot be unloaded, and no GPU be reset
    #[arg(long, conflicts_with = "trace")]
    pub no_gpus: bool,

    /// Read no command line and no environment of processes: what is shown can be given to others. Names of
    /// processes, users and jobs, and addresses, are shown
    #[arg(long)]
    pub mask: bool,
}

/// Devices that are left alone.
#[derive(Clone, Debug, Default, Args)]
pub struct ExcludeArgs {
    /// Ask nothing of this RDMA device's driver, and read none of its counters; * and ? stand for characters.
    /// May be repeated
    #[arg(long = "exclude-device", value_name = "NAME", value_parser = name)]
    patterns: Vec<String>,
}

impl Cli {
    /// Leaves more devices alone than the options say.
    pub fn exclude(&mut self, more: Vec<String>) {
        let options = match &mut self.command {
            Some(Command::Check(args)) => &mut args.exclude,
            Some(Command::NcclLog(args)) => &mut args.exclude,
            Some(Command::Doctor(args)) => &mut args.exclude,
            _ => &mut self.view.exclude,
        };
        options.patterns.extend(more);
    }
}

impl ExcludeArgs {
    /// The machine without the devices that are excluded.
    pub fn root(&self) -> Root {
        Root::default().without(Excluded::new(&self.patterns))
    }
}

impl ViewArgs {
    /// Time between two measurements.
    pub fn delay(&self) -> Duration {
        self.delay.unwrap_or(Duration::from_secs(1))
    }

    /// Event kinds to show, `None` for all. [`EventKind::Lost`] is always among them.
    pub fn event_kinds(&self) -> Option<Vec<EventKind>> {
        if self.event.is_empty() {
            return None;
        }
        let wanted = |kind: &EventKind| {
            *kind == EventKind::Lost || self.event.iter().any(|selector| selector.0.contains(kind))
        };
        Some(EventKind::ALL.into_iter().filter(wanted).collect())
    }
}

/// Commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show every eBPF program: attached or not, why not, and what is missing without it
    Probes(ProbesArgs),

    /// Look for some seconds for what is wrong, name it, and end with a code for scripts
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),

    /// Check devices, ports, limits and settings of this machine, or of one process: what is wrong, and what
    /// to do
    #[command(after_help = AFTER_DOCTOR)]
    Doctor(DoctorArgs),

    /// Make, remove and show SoftRoCE devices to try things on
    Lab(rdmatop_lab::LabArgs),

    /// Read what a job logged with NCCL_DEBUG=INFO: RDMA or TCP, on which NICs, with GPUDirect or not, and
    /// why
    #[command(name = "nccl-log")]
    NcclLog(NcclLogArgs),

    /// Print the man page, or write all pages into a directory
    Man {
        /// Write rdmatop.1 and a page for each command into DIR
        #[arg(long, value_name = "DIR")]
        out_dir: Option<PathBuf>,
    },

    /// Print the completions for a shell
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// How long to look, 1 to 3600; some findings need 10 s to be sure
    #[arg(
        long = "for", value_name = "SECS", value_parser = |text: &str| seconds(text, 1.0, 3600.0), default_value = "12",
        allow_negative_numbers = true
    )]
    pub seconds: Duration,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Only this RDMA device
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub device: Option<String>,

    /// Only this process
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: Option<u32>,

    /// Devices that are left alone.
    #[command(flatten)]
    pub exclude: ExcludeArgs,

    /// Do not ask NVIDIA GPUs who computes on them. While rdmatop asks, it has their driver open: the driver
    /// cannot be unloaded, and no GPU be reset
    #[arg(long)]
    pub no_gpus: bool,

    /// Load no eBPF programs: netlink, /sys and /proc only
    #[arg(long)]
    pub no_ebpf: bool,
}

/// The text below the options of `doctor --help`.
const AFTER_DOCTOR: &str = "\
Exit status:
  0  no problem found, and each check that applies was made
  1  warnings
  2  problems; also a usage error, which prints nothing on standard output
  3  a check could not be made, or there is no process of that number";

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// As this process or its container sees it: its limits, its /dev/infiniband, its settings
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Devices that are left alone.
    #[command(flatten)]
    pub exclude: ExcludeArgs,

    /// List also the checks that do not apply to this machine
    #[arg(long)]
    pub all: bool,

    /// No colors
    #[arg(long)]
    pub no_color: bool,
}

/// Arguments of `nccl-log`.
#[derive(Clone, Debug, Args)]
pub struct NcclLogArgs {
    /// Logs of the job, of any number of ranks and hosts, plain or gzip; - or nothing: standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// How long to look at processes of the log that run on this machine, to set what they move beside what
    /// the log says: 0.5 to 3600, or 0 to read the log alone
    #[arg(long = "for", value_name = "SECS", value_parser = beside, default_value = "3", allow_negative_numbers = true)]
    pub seconds: Duration,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Devices that are left alone.
    #[command(flatten)]
    pub exclude: ExcludeArgs,

    /// Load no eBPF programs: netlink, /sys and /proc only
    #[arg(long)]
    pub no_ebpf: bool,
}

/// Arguments of `probes`.
#[derive(Clone, Debug, Args)]
pub struct ProbesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// How programs are attached [default: auto]
    #[arg(long, value_name = "HOW")]
    pub attach: Option<AttachMode>,

    /// Times and errors of post_send, and of what else comes by write(), where posts are counted too: costs
    /// each of those some 1500 instructions more
    #[arg(long)]
    pub verb_times: bool,
}

/// How programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AttachMode {
    /// The same as kprobe.
    #[default]
    Auto,
    /// kprobes: never pin a module.
    Kprobe,
    /// fentry and fexit: cheaper, pin the module.
    Fentry,
}

/// One word of `--event`: a kind or a family of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSelector(Vec<EventKind>);

/// The clap command, for the man page and the completions.
pub fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// One line for a usage error. Clap prints several paragraphs with a usage summary; a terminal or a log needs
/// the error and where to find help.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let (_, list) = text.split_once("Commands:\n").unwrap_or_default();
        let names = list.lines().map_while(|line| line.split_whitespace().next());
        let names: Vec<&str> = names.filter(|name| *name != "help").collect();
        let (_, usage) = text.split_once("Usage: rdmatop ").unwrap_or_default();
        let command = usage.split(" <").next().unwrap_or_default();
        return format!(
            "rdmatop: {command} needs a command: {}; see rdmatop {command} --help",
            names.join(", ")
        );
    }
    let what = text.split("\n\nUsage:").next().unwrap_or(&text);
    let what = what.split("\n\nFor more information").next().unwrap_or(what);
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let paragraphs = what.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let all: Vec<String> = paragraphs.filter(|paragraph| !paragraph.is_empty()).collect();
    format!("rdmatop: {}; see rdmatop --help", all.join("; "))
}

/// Families of kinds of events: how their names begin.
const FAMILIES: [&str; 7] = ["qp", "mr", "cq", "devx", "cm", "wr", "finding"];

fn event_selector(word: &str) -> Result<EventSelector, String> {
    let family = FAMILIES.contains(&word);
    let prefix = format!("{word}_");
    let kinds: Vec<EventKind> = EventKind::ALL
        .into_iter()
        .filter(|kind| kind.name() == word || (family && kind.name().starts_with(&prefix)))
        .collect();
    if kinds.is_empty() {
        let all: Vec<&str> = EventKind::ALL.into_iter().map(EventKind::name).collect();
        return Err(format!(
            "kinds are {} and the families {}",
            all.join(", "),
            FAMILIES.join(", ")
        ));
    }
    Ok(EventSelector(kinds))
}

/// What `--sort` takes: the columns of processes, and other words for some.
fn sort_words() -> PossibleValuesParser {
    let columns = fields::PROCESS.iter().map(|field| &field.meta);
    let columns = columns.filter(|meta| meta.screen.is_some());
    let words = columns.map(|meta| {
        let help = match meta.sort {
            [] => meta.help.to_owned(),
            others => format!("{}; also: {}", meta.help, others.join(", ")),
        };
        PossibleValue::new(meta.id).help(help).aliases(meta.sort)
    });
    PossibleValuesParser::new(words)
}

/// The length of a look; 0 is no look.
fn beside(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0.0) => Ok(Duration::ZERO),
        _ => seconds(text, 0.5, 3600.0).map_err(|range| format!("{range}; 0 reads the log alone")),
    }
}

fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let range = || {
        format!(
            "seconds from {least} to {most} are accepted, for example {}",
            least.max(0.5)
        )
    };
    let value: f64 = text.parse().map_err(|_| range())?;
    // The comparison also refuses NaN, which parses as a number.
    if value >= least && value <= most {
        Duration::try_from_secs_f64(value).map_err(|_| range())
    } else {
        Err(range())
    }
}

fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err("a process id, a number from 1, is accepted; --comm takes a name".to_owned()),
    }
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the name is empty".to_owned());
    }
    // Names as they are displayed, so that a name on the screen can be typed, and one typed in full as well.
    Ok(rdmatop_base::text::sanitize(text.as_bytes()))
}
