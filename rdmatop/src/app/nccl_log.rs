//! `rdmatop nccl-log`: reads logs, plain or compressed, from files or standard input, and looks at the
//! processes that wrote them.

mod input;
mod ranks;

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal as _, Read},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
};

use flate2::bufread::MultiGzDecoder;

use super::{block_on, once, plan::Plan, print, ready, say, signals};
use crate::{
    cli::NcclLogArgs,
    exit::{Exit, Stop},
};
use rdmatop_base::text;
use rdmatop_nccl_log::{
    identity::{Identity, is_here},
    json,
    now::Now,
    page::{self, Links},
    report::{MAX_LOG, Report},
};
use rdmatop_sources::{
    foreign::{self, Refusal},
    privileges,
    root::Root,
    sysfs::{list_devices, read_device},
};

use input::Patient;
use ranks::Input;

/// What a gzip file begins with (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// A line without an end is read in pieces of this size.
const LINE: u64 = 64 * 1024;

pub(super) fn run(args: &NcclLogArgs, plan: &Plan) -> Result<Exit, Stop> {
    let begun = ready::begin(plan);
    let mut report = Report::default();
    let inputs = read_all(&mut report, &args.files)?;
    report.end();
    let root = args.exclude.root();
    let page = |now: Option<&Now>| {
        Ok(if args.json {
            json::document(&report, now)
                .map_err(|error| Stop::failure(format!("cannot make JSON: {error}")))?
                + "\n"
        } else {
            let page = page::text(&report, &links(&report, &root), now);
            if io::stdout().is_terminal() {
                page::for_terminal(&page)
            } else {
                page
            }
        })
    };
    let seconds = args.seconds.as_secs_f64();
    let ranks::Search {
        mut found,
        keys,
        left,
    } = if seconds > 0.0 {
        ranks::find(&report, &inputs, &root)
    } else {
        ranks::Search::default()
    };
    let left = (left > 0)
        .then(|| format!("{left} processes of the log were not looked for: the search took too long"));
    if let Some(left) = &left {
        say(&format!("rdmatop: {left}"));
    }
    let living = found
        .iter()
        .filter(|one| matches!(one.identity, Identity::Process(..)))
        .count();
    if living == 0 {
        return print(&page(Now::unobserved(&report, &found).as_ref())?).map(|_| Exit::Ok);
    }
    let whose = if living == 1 {
        "1 process of this log runs"
    } else {
        &format!("{living} processes of this log run")
    };
    say(&format!(
        "rdmatop: {whose} here: looking for {seconds} s; Ctrl-C ends it early"
    ));
    block_on(async {
        let (sources, _) = ready::with_prober(plan, begun);
        let mut signals = signals::take()?;
        let measured = once::measure(plan, sources, &mut signals).await;
        ranks::mark_ended(&mut found, &keys, &root);
        let (now, ending) = match measured {
            Ok((snapshot, no_rdma, ending)) => {
                let seconds = snapshot.interval_ns.map_or(seconds, |ns| ns as f64 / 1e9);
                let mut now = Now::of(&report, &found, &snapshot, seconds);
                now.missing.extend(no_rdma.into_iter().chain(left));
                (now, ending)
            }
            // What the log says is printed without a look at the processes, too.
            Err(stop) => {
                say(&format!("rdmatop: the processes are not shown: {}", stop.line));
                (Now::default(), None)
            }
        };
        let shown = now.time.is_some().then_some(&now);
        once::print_text(page(shown)?, &mut signals, ending).await?;
        ending.map_or(Ok(Exit::Ok), signals::outcome)
    })
}

/// Reads the logs in their order.
fn read_all(report: &mut Report, files: &[PathBuf]) -> Result<Vec<Input>, Stop> {
    let mut inputs = Vec::new();
    if files.is_empty() {
        return Ok(vec![standard_input(report)?]);
    }
    for (number, path) in (0..).zip(files) {
        report.begin(number);
        if path.as_os_str() == "-" {
            inputs.push(standard_input(report)?);
            continue;
        }
        let cannot = |error: Refusal| {
            Stop::failure(format!(
                "cannot read {}: {error}; give the file that NCCL_DEBUG_FILE names, or the output of the job",
                path.display()
            ))
        };
        let file = foreign::log(path).map_err(cannot)?;
        let mut reader = BufReader::new(Patient::new(file, || waits(path)));
        without_rights(|| read(report, &mut reader, path))?;
        // Asked after the last line was read, so that the time of the last write is not too early.
        inputs.push(Input::of(reader.get_ref().source()));
    }
    Ok(inputs)
}

fn standard_input(report: &mut Report) -> Result<Input, Stop> {
    let name = Path::new("standard input");
    let own = io::stdin().as_fd().try_clone_to_owned();
    let file = own.map_err(|error| Stop::failure(format!("cannot read standard input: {error}")))?;
    let patient = Patient::new(File::from(file), || waits(name));
    without_rights(|| read(report, &mut BufReader::new(patient), name))?;
    Ok(Input::default())
}

/// Runs what reads foreign bytes on a thread that has no capability, which it cannot get back.
fn without_rights<T: Send>(work: impl FnOnce() -> Result<T, Stop> + Send) -> Result<T, Stop> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            privileges::renounce();
            work()
        });
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A log without data for a while.
fn waits(name: &Path) {
    say(&format!(
        "rdmatop: {} has no data yet: it is read until its writers close it; Ctrl-C ends this",
        name.display()
    ));
}

/// Reads one log to its present end. A log that is being written ends within a line or a compressed block:
/// the complete part counts.
fn read(report: &mut Report, from: &mut dyn BufRead, name: &Path) -> Result<(), Stop> {
    read_up_to(MAX_LOG, report, from, name)
}

/// The same, of a log that may have any number of bytes, as a gzip file of zeroes or one with a hole has.
fn read_up_to(most: u64, report: &mut Report, from: &mut dyn BufRead, name: &Path) -> Result<(), Stop> {
    let cannot = |error: &io::Error| Stop::failure(format!("cannot read {}: {error}", name.display()));
    let gzip = from
        .fill_buf()
        .map_err(|error| cannot(&error))?
        .starts_with(&GZIP);
    if !gzip {
        return lines(most, report, from).map_err(|error| cannot(&error));
    }
    match lines(most, report, &mut BufReader::new(MultiGzDecoder::new(from))) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        outcome => outcome.map_err(|error| cannot(&error)),
    }
}

fn lines(most: u64, report: &mut Report, from: &mut dyn BufRead) -> io::Result<()> {
    let mut from = from.take(most);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = from.by_ref().take(LINE).read_until(b'\n', &mut line);
        // A hole reads as zeroes. logrotate leaves one before what is written on (copytruncate).
        let zeroes = line.iter().take_while(|byte| **byte == 0).count();
        let line = line.get(zeroes..).unwrap_or_default();
        if !line.is_empty() {
            // Also the part before a failure: the line may be complete.
            report.line(line.strip_suffix(b"\n").unwrap_or(line));
        }
        if read? == 0 {
            report.cut += u64::from(from.limit() == 0);
            return Ok(());
        }
    }
}

/// Link rates of this machine's devices, when the log is of this machine.
fn links(report: &Report, root: &Root) -> Links {
    let here = ranks::hostname(root);
    if !report.hosts().iter().any(|host| is_here(host, &here)) {
        return Links::new();
    }
    let mut links = Links::new();
    let all = list_devices(root).unwrap_or_default().into_iter();
    for dir in all.filter(|dir| !root.excludes(&text::sanitize(dir.as_encoded_bytes()))) {
        let Some(device) = read_device(root, &dir) else {
            continue;
        };
        let rate: u64 = device
            .ports
            .iter()
            .filter_map(|port| port.rate.as_ref()?.bits_per_sec)
            .sum();
        if rate > 0 {
            links.insert(dir.to_string_lossy().into_owned(), rate);
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    const LOG: &str = "n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n\
                       n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n";

    fn of(bytes: &[u8]) -> Report {
        let mut report = Report::default();
        read(&mut report, &mut BufReader::new(bytes), Path::new("log")).unwrap();
        report.end();
        report
    }

    #[test]
    fn a_compressed_log_is_read_and_a_cut_one_as_far_as_it_goes() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
        gzip.write_all(LOG.as_bytes()).unwrap();
        let bytes = gzip.finish().unwrap();
        assert_eq!(of(&bytes).nccl_lines, 2);
        // Without the end of the stream, as in a file that gzip is still writing.
        assert_eq!(of(&bytes[..bytes.len() - 12]).nccl_lines, 2);
        // Rotated logs are often concatenated.
        assert_eq!(of(&[bytes.clone(), bytes].concat()).nccl_lines, 4);
    }

    #[test]
    fn a_log_without_end_is_read_up_to_a_limit_and_that_is_said() {
        let most = 10 * LINE;
        let read = |from: &mut dyn BufRead| {
            let mut report = Report::default();
            read_up_to(most, &mut report, from, Path::new("log")).unwrap();
            report.end();
            let page = page::text(&report, &Links::new(), None);
            assert_eq!(page.contains("Cut: "), report.cut > 0, "{page}");
            (report.lines, report.nccl_lines, report.cut)
        };
        let zeroes = || BufReader::new(io::repeat(0));
        assert_eq!(read(&mut zeroes()), (0, 0, 1));
        assert_eq!(read(&mut LOG.as_bytes().chain(zeroes())), (2, 2, 1));
        assert_eq!(read(&mut BufReader::new(io::repeat(b'\n'))), (most, 0, 1));
        // The same compressed; and a hole before the lines, of a log that ends.
        let gzip = |limit, tail: &str| {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            io::copy(&mut zeroes().take(limit), &mut gzip).unwrap();
            gzip.write_all(tail.as_bytes()).unwrap();
            gzip.finish().unwrap()
        };
        assert_eq!(read(&mut &gzip(2 * most, LOG)[..]), (0, 0, 1));
        assert_eq!(read(&mut &gzip(most / 2 + 100, LOG)[..]), (2, 2, 0));
    }

    #[test]
    fn logs_are_read_without_any_capability() {
        let status = without_rights(|| Ok(std::fs::read_to_string("/proc/thread-self/status").unwrap()));
        let status = status.unwrap();
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert!(
                status.contains(&format!("{set}:\t0000000000000000\n")),
                "{status}"
            );
        }
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory_and_the_next_is_read() {
        let mut log = vec![b'x'; 3 * 64 * 1024];
        log.push(b'\n');
        log.extend_from_slice(LOG.as_bytes());
        let report = of(&log);
        assert_eq!(report.nccl_lines, 2);
        assert_eq!(report.lines, 6);
    }
}
