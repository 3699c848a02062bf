//! `rdmatop doctor`: reads the machine, passes the facts to the checks, prints the report.

mod device;
mod kernel;
mod late;
mod machine;
mod pci;
pub(super) mod process;
mod read;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
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
    doctor::{
        self, Fact, Facts,
        facts::{Device, Gpu, IdleNic, Process},
        page,
    },
    exit::{Exit, Stop},
    source::{platform::Platform, privileges, proc::lives, root::Root, sysfs::list_devices},
};

/// How long drivers have to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a process's files may take: a process that registers memory holds the lock that they wait for.
const FOR_PROCESSES: Duration = Duration::from_secs(2);
/// Processes that are read at most.
const PROCESSES: usize = 64;

pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode, Stop> {
    let root = Root::default();
    if let Some(pid) = args.pid.filter(|pid| !lives(&root, *pid)) {
        // Nothing was examined: none of 0, 1 and 2 is right.
        return Err(Stop {
            exit: Exit::NothingToShow,
            line: format!("there is no process {pid}; `ps` lists them"),
        });
    }
    let facts = collect(&root, args.pid);
    let report = doctor::examine(&facts);
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
    Kernel(kernel::Said),
    Openers(BTreeSet<u32>),
    Pci(Vec<Gpu>, Vec<IdleNic>),
    Process(Box<Process>),
}

/// Reads everything. What does not answer in time is named, and does not delay the rest.
fn collect(root: &Root, pid: Option<u32>) -> Facts {
    let platform = Platform::read(root);
    if root.is_live() {
        privileges::shed(false);
    }
    let names = list_devices(root);
    let mut facts = Facts {
        host: machine::host(root, &platform),
        pid,
        devices: Fact::Absent,
        verbs: device::verbs(root),
        nodes: machine::nodes(root),
        gpu_memory: machine::gpu_memory(root),
        tcp: machine::tcp(root),
        services: machine::services(root, platform.euid == Some(0)),
        own: machine::own(root, &platform),
        ..Facts::default()
    };
    let users = drivers(root, names.as_deref(), pid.is_none(), &mut facts);
    facts.softroce = machine::softroce(root, &facts.devices, !facts.idle_nics.is_empty());
    processes(root, users, &mut facts);
    facts
}

/// Reads what may wait for drivers. Returns processes that use RDMA or GPUs.
fn drivers(root: &Root, names: Option<&[OsString]>, search: bool, facts: &mut Facts) -> BTreeSet<u32> {
    let until = Instant::now() + stretched(PATIENCE);
    let mut jobs: Vec<Job<Part>> = Vec::new();
    for name in names.unwrap_or_default() {
        let (root, name) = (root.clone(), name.clone());
        jobs.push(Box::new(move || {
            Part::Device(device::read(&root, &name).map(Box::new))
        }));
    }
    let mut searches = vec!["GPUs and NICs on PCI"];
    {
        let root = root.clone();
        jobs.push(Box::new(move || {
            let (gpus, nics) = pci::search(&root);
            Part::Pci(gpus, nics)
        }));
    }
    if root.is_live() {
        let own = root.clone();
        searches.push("processes that use RDMA");
        jobs.push(Box::new(move || Part::Kernel(kernel::ask(&own))));
    }
    if search {
        let own = root.clone();
        searches.push("processes that have devices open");
        jobs.push(Box::new(move || Part::Openers(kernel::openers(&own))));
    }
    let mut devices = Vec::new();
    let mut users = BTreeSet::new();
    if root.is_live() {
        facts.leaving = Fact::Unreadable("RDMA netlink did not answer in time".to_owned());
    }
    let late: &[OsString] = names.unwrap_or_default();
    for (at, answer) in gather(jobs, until).into_iter().enumerate() {
        match answer {
            Some(Part::Device(device)) => devices.extend(device.map(|device| *device)),
            Some(Part::Kernel(said)) => {
                facts.leaving = said.leaving;
                users.extend(said.users);
            }
            Some(Part::Openers(pids)) => users.extend(pids),
            Some(Part::Pci(gpus, nics)) => (facts.gpus, facts.idle_nics) = (gpus, nics),
            Some(Part::Process(_)) => {}
            // Devices come first, then the searches.
            None => match late.get(at) {
                Some(name) => devices.push(device::late(name)),
                None => facts.unfinished.extend(searches.get(at - late.len())),
            },
        }
    }
    if names.is_some() {
        devices.sort_by_key(|device| natural(&device.name));
        facts.devices = Fact::Known(devices);
    }
    users
}

/// Natural order: mlx5_10 comes after mlx5_2.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, tail) = name.split_at(digits);
    (head.to_owned(), tail.parse().unwrap_or(0), name.to_owned())
}

fn processes(root: &Root, users: BTreeSet<u32>, facts: &mut Facts) {
    let until = Instant::now() + stretched(FOR_PROCESSES);
    let own = std::process::id();
    let subject: Vec<Subject> = match facts.pid {
        Some(pid) => vec![Subject::Asked(pid)],
        None => [Subject::Own]
            .into_iter()
            .chain(
                users
                    .into_iter()
                    .filter(|pid| *pid != own)
                    .take(PROCESSES)
                    .map(Subject::Pid),
            )
            .collect(),
    };
    let jobs = subject.iter().map(|subject| {
        let (root, subject) = (root.clone(), *subject);
        let job: Job<Part> = Box::new(move || Part::Process(Box::new(process::read(&root, subject))));
        job
    });
    let mut answers = gather(jobs.collect(), until)
        .into_iter()
        .zip(&subject)
        .map(|(answer, subject)| match answer {
            Some(Part::Process(process)) => *process,
            _ => silent(*subject),
        });
    facts.view = answers.next().unwrap_or_default();
    let found: Vec<Process> = if facts.pid.is_some() {
        vec![facts.view.clone()]
    } else {
        answers.collect()
    };
    // Processes that have ended meanwhile are left out.
    let (hidden, shown): (Vec<Process>, Vec<Process>) = found
        .into_iter()
        .filter(|process| process.environ != Fact::Absent)
        .partition(|process| facts.pid.is_none() && process.environ.unreadable().is_some());
    facts.hidden_processes = hidden.len();
    facts.processes = shown;
}

/// A process whose files could not be read in time.
fn silent(subject: Subject) -> Process {
    let why = || "it did not answer in time (its memory is locked for long)".to_owned();
    Process {
        pid: match subject {
            Subject::Own => std::process::id(),
            Subject::Pid(pid) | Subject::Asked(pid) => pid,
        },
        environ: Fact::Unreadable(why()),
        memlock: Fact::Unreadable(why()),
        nodes: Fact::Unreadable(why()),
        sharers: Fact::Unreadable(why()),
        ..Process::default()
    }
}
