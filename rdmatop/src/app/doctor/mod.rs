//! `rdmatop doctor`: reads the machine, passes the facts to the checks, prints the report.

mod device;
#[cfg(feature = "testkit")]
pub(crate) mod fuzz;
mod kernel;
mod late;
mod machine;
mod pci;
pub(super) mod process;
mod read;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    process::ExitCode,
    time::{Duration, Instant},
};

use self::{
    late::{Job, gather},
    process::Subject,
};
use super::{patience::stretched, plan::Terminal, print};
use crate::{
    cli::DoctorArgs,
    exit::{Exit, Stop},
};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::text::natural;
use rdmatop_base::{text, turns::in_turn};
use rdmatop_doctor::{
    Facts, Reading,
    facts::{Device, Process, Sharers},
    page,
};
use rdmatop_sources::{
    open_files, platform::Platform, privileges, proc::lives, root::Root, sysfs::list_devices,
};

/// How long drivers have to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a process's files may take: a process that registers memory holds the lock that they wait for.
const FOR_PROCESSES: Duration = Duration::from_secs(2);
/// Processes that are read at most.
const PROCESSES: usize = 64;
/// Threads that read what drivers give.
const READERS: usize = 16;
/// Threads that read the files of one user's processes.
const READERS_OF_USER: usize = 4;
/// Why a search has no result.
const LATE: &str = "the search did not end in time";

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode, Stop> {
    let root = args.exclude.root();
    if let Some(pid) = args.pid.filter(|pid| !lives(&root, *pid)) {
        // Nothing was examined, so none of the exit codes 0, 1 and 2 is right.
        return Err(Stop {
            exit: Exit::NothingToShow,
            line: format!("there is no process {pid}; `ps` lists them"),
        });
    }
    let facts = collect(&root, args.pid);
    let report = rdmatop_doctor::examine(&facts);
    let terminal = Terminal::here();
    let colors = terminal.stdout && !terminal.dumb && !terminal.no_color && !args.no_color;
    let text = if args.json {
        page::json(&facts, &report).map_err(|error| Stop::failure(format!("cannot make JSON: {error}")))?
            + "\n"
    } else {
        page::text(&facts, &report, args.all, colors)
    };
    print(&text)?;
    Ok(ExitCode::from(report.code()))
}

/// The result of a thread.
enum Part {
    Device(Option<Box<Device>>),
    Kernel(kernel::NetlinkFacts),
    Openers(BTreeMap<u32, bool>, bool),
    Pci(pci::Found),
}

/// The result of a thread that reads of a process.
enum Piece {
    /// What the kernel says.
    Process(Box<Process>),
    /// What is below its root directory.
    Below(process::RootFiles),
    /// Who shares its verbs files.
    Sharers(Reading<Sharers>),
}

/// Reads everything. What does not answer in time is named, and does not delay the rest.
fn collect(root: &Root, pid: Option<u32>) -> Facts {
    let platform = Platform::read(root);
    if root.is_live() {
        privileges::shed(false);
    }
    let name = |dir: &OsString| text::sanitize(dir.as_encoded_bytes());
    let (excluded, names) = match list_devices(root) {
        Some(all) => {
            let (excluded, names): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|dir| root.excludes(&name(dir)));
            (excluded.iter().map(name).collect(), Some(names))
        }
        None => (Vec::new(), None),
    };
    // Each is named: a fact that is absent because nothing reads it would be passed by its check.
    let mut facts = Facts {
        excluded,
        host: machine::host(root, &platform),
        pid,
        verbs: device::verbs(root),
        nodes: machine::nodes(root),
        gpu_memory: machine::gpu_memory(root),
        tcp: machine::tcp(root),
        services: machine::services(root, platform.euid == Some(0)),
        own: machine::own(root, &platform),
        // `drivers` sets them.
        devices: Reading::Absent,
        leaving: Reading::Absent,
        idle_nics: Vec::new(),
        unfinished: Vec::new(),
        gpus: Vec::new(),
        data_direct: false,
        elsewhere: Vec::new(),
        softroce: None,
        // `processes` sets them.
        view: Process::default(),
        processes: Vec::new(),
        hidden_processes: 0,
        left_out: 0,
    };
    let (users, with_qps) = drivers(root, names.as_deref(), pid.is_none(), &mut facts);
    facts.elsewhere = elsewhere(root, &facts);
    let other = [&facts.excluded, &facts.elsewhere]
        .iter()
        .any(|all| !all.is_empty());
    let other = other || !facts.idle_nics.is_empty();
    facts.softroce = machine::softroce(root, &facts.devices, other);
    processes(root, users.keys().copied().gather(), &mut facts);
    for process in &mut facts.processes {
        process.has_open = users.get(&process.pid) == Some(&true);
        process.has_qps = with_qps.contains(&process.pid);
    }
    facts
}

/// In mode exclusive, the devices of other network namespaces: the class of verbs lists those of all, and
/// /sys those of this one.
fn elsewhere(root: &Root, facts: &Facts) -> Vec<String> {
    let (Some(own), Some(verbs)) = (facts.devices.known(), facts.verbs.known()) else {
        return Vec::new();
    };
    let is_here = |name: &String| own.iter().any(|device| device.name == *name);
    let names = verbs.iter().map(|(_, name)| name);
    let names = names.filter(|name| !is_here(name) && !root.excludes(name));
    names.filter(|_| facts.host.exclusive).cloned().collect()
}

const OPENERS: &str = "processes that have devices open";

/// Reads what may wait for drivers. Returns processes that use RDMA or GPUs, each with whether it uses RDMA,
/// and those with queue pairs.
fn drivers(
    root: &Root,
    names: Option<&[OsString]>,
    search: bool,
    facts: &mut Facts,
) -> (BTreeMap<u32, bool>, BTreeSet<u32>) {
    let until = Instant::now() + stretched(PATIENCE);
    let mut jobs: Vec<Job<Part>> = Vec::new();
    for name in names.unwrap_or_default() {
        let (root, name) = (root.clone(), name.clone());
        jobs.push(Job::new(None, move || {
            Part::Device(device::read(&root, &name).map(Box::new))
        }));
    }
    let mut searches = vec!["GPUs and NICs on PCI"];
    {
        let (root, container) = (root.clone(), facts.host.container);
        jobs.push(Job::new(None, move || Part::Pci(pci::search(&root, container))));
    }
    if root.is_live() {
        let own = root.clone();
        searches.push(kernel::USERS);
        jobs.push(Job::new(None, move || Part::Kernel(kernel::ask(&own))));
    }
    if search {
        let own = root.clone();
        searches.push(OPENERS);
        jobs.push(Job::new(None, move || {
            let (found, cut) = kernel::openers(&own, open_files::MOST);
            Part::Openers(found, cut)
        }));
    }
    let mut devices: Vec<Device> = Vec::new();
    let (mut users, mut with_qps, mut in_use) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    if root.is_live() {
        facts.leaving = Reading::Unknown("RDMA netlink did not answer in time".to_owned());
    }
    let late: &[OsString] = names.unwrap_or_default();
    for (at, answer) in gather(jobs, READERS, until).into_iter().enumerate() {
        match answer {
            Some(Part::Device(device)) => devices.extend(device.map(|device| *device)),
            Some(Part::Kernel(said)) => {
                facts.leaving = said.leaving;
                users.extend(said.users.into_iter().map(|pid| (pid, true)));
                (in_use, with_qps) = (said.in_use, said.with_qps);
                facts.host.exclusive |= said.exclusive;
                facts.unfinished.extend(said.unanswered);
            }
            Some(Part::Openers(pids, cut)) => {
                for (pid, verbs) in pids {
                    *users.entry(pid).or_default() |= verbs;
                }
                if cut {
                    facts.unfinished.push((OPENERS, open_files::CUT));
                }
            }
            Some(Part::Pci(found)) => (facts.gpus, facts.idle_nics, facts.data_direct) = found,
            // The jobs of devices come first, then the searches.
            None => match late.get(at) {
                Some(name) => devices.push(device::late(name)),
                None => facts
                    .unfinished
                    .extend(searches.get(at - late.len()).map(|what| (*what, LATE))),
            },
        }
    }
    if names.is_some() {
        for device in &mut devices {
            let used = in_use.get(&device.name);
            for port in &mut device.ports {
                port.in_use = used.is_some_and(|ports| ports.contains(&port.number));
            }
        }
        devices.order_by(|one, other| natural(&one.name, &other.name));
        facts.devices = Reading::Known(devices);
    }
    (users, with_qps)
}

fn processes(root: &Root, mut users: BTreeSet<u32>, facts: &mut Facts) {
    users.remove(&std::process::id());
    let asked = open_files::Users::default();
    let user = |pid| Some(asked.of(root, pid));
    let subjects: Vec<(Subject, Option<u32>)> = if let Some(pid) = facts.pid {
        vec![(Subject::Asked(pid), user(pid))]
    } else {
        let of_users = users.iter().map(|pid| (Subject::Pid(*pid), user(*pid)));
        let taken = in_turn(of_users, PROCESSES, |(_, user)| *user);
        facts.left_out = users.len() - taken.len();
        [(Subject::Own, None)].into_iter().chain(taken).collect()
    };
    let until = Instant::now() + stretched(FOR_PROCESSES);
    let jobs = subjects.iter().flat_map(|(subject, user)| {
        let (subject, here, there) = (*subject, root.clone(), root.clone());
        let read = Job::new(*user, move || {
            Piece::Process(Box::new(process::read(&here, subject)))
        });
        let below = Job::new(*user, move || Piece::Below(process::below(&there, subject)));
        let (all, pid) = (root.clone(), subject.pid());
        let is_asked = matches!(subject, Subject::Asked(_));
        // Others can delay it, so that it must not delay what is known of the process itself.
        let shared = is_asked.then(|| Job::new(*user, move || Piece::Sharers(process::shared(&all, pid))));
        [read, below].into_iter().chain(shared)
    });
    let mut answers = gather(jobs.collect(), READERS_OF_USER, until).into_iter();
    let mut found = Vec::new();
    for (subject, _) in &subjects {
        let mut process = match answers.next().flatten() {
            Some(Piece::Process(process)) => *process,
            _ => silent(root, *subject),
        };
        let below = match answers.next().flatten() {
            Some(Piece::Below(below)) => below,
            _ => process::RootFiles::late(*subject, "its file systems did not answer in time"),
        };
        below.join(&mut process);
        if matches!(subject, Subject::Asked(_)) {
            process.sharers = match answers.next().flatten() {
                Some(Piece::Sharers(sharers)) => sharers,
                _ => Reading::Unknown(LATE.to_owned()),
            };
        }
        found.push(process);
    }
    facts.view = found.first().cloned().unwrap_or_default();
    if facts.pid.is_none() {
        // rdmatop itself.
        found.remove(0);
    }
    // Processes that have ended meanwhile are left out.
    let (hidden, shown): (Vec<Process>, Vec<Process>) = found
        .into_iter()
        .filter(|process| process.environ != Reading::Absent)
        .partition(|process| facts.pid.is_none() && process.environ.unreadable().is_some());
    facts.hidden_processes = hidden.len();
    facts.processes = shown;
}

/// A process that could not be read in time.
fn silent(root: &Root, subject: Subject) -> Process {
    let why = || "it did not answer in time (its memory is locked for long)".to_owned();
    let pid = subject.pid();
    Process {
        pid,
        comm: process::comm(&root.proc(pid.to_string())),
        environ: Reading::Unknown(why()),
        memlock: Reading::Unknown(why()),
        rdma_limits: Reading::Unknown(why()),
        interfaces: Reading::Unknown(why()),
        libraries: match subject {
            Subject::Asked(_) => Reading::Unknown(why()),
            Subject::Own | Subject::Pid(_) => Reading::Absent,
        },
        // `RootFiles::join` and `collect` set the others.
        ..Process::default()
    }
}
