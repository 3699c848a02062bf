//! What NCCL, RCCL and aws-ofi-nccl print when something about the network is wrong: each message with its
//! versions, its meaning and what to do next.
//!
//! The messages and their versions were read in the sources at each tag: NCCL 2.3 to 2.30 (src/transport,
//! src/misc, src/plugin, src/bootstrap.cc, src/init.cc, src/proxy.cc, src/graph), RCCL of ROCm 3.3 to 6.3,
//! aws-ofi-nccl 1.0 to 1.21; those of GPUDirect-TCPX, FastSocket and AMD's ANP in their last commit. Versions
//! are of the message in all its spellings. An entry matches by what its source prints in that place, so no
//! message is explained by the words of another.
//!
//! NCCL 2.31 was read in its branch of development, and its released library (2.31.2) for texts; of 2.32 the
//! library's texts (2.32.3) and its src/debug.cc were read: they have all texts of 2.30 that an entry named
//! then, except that 2.32 has no `NET/Socket : no interface found`. Of RCCL after ROCm 6.3 these were read:
//! src/debug.cc, the transports IB and IB-CAST, the loading of plugins, the calls of ROCm. For what it shares
//! with NCCL the release of NCCL counts that it is made of (ROCm 6.4: 2.22, 7.0: 2.26, 7.1: 2.27, 7.11: 2.28,
//! 10: 2.30 and 2.31). Entries of GPUs, topology, misuse and endpoints came later, and were read in the tags
//! up to 2.30 only. What PyTorch prints is of published logs.
//!
//! What other libraries print of the same network is in `others.rs`. `docs/nccl-messages.md` is made of these
//! tables, but for its first column: a line for each entry, which tests hold it to.

/// A table of messages. Each has its id, its kind, what it means and what to do next; then its spellings,
/// for each the versions that print it, and how it is recognised. A spelling is an [`Entry`].
macro_rules! messages {
    ($(
        $id:literal $kind:ident means $means:expr;
        next $next:expr;
        $(in $versions:tt: $pattern:expr;)+
    )*) => {
        &[$($($crate::dictionary::Entry {
            id: $id,
            versions: $versions,
            pattern: $pattern,
            kind: $crate::dictionary::Kind::$kind,
            means: $means,
            next: $next,
        },)+)*]
    };
}

use serde::Serialize;

use super::report::is_ib;

mod network;
mod others;
mod plugins;
mod results;
mod start;
mod verbs;

#[cfg(test)]
mod tests;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The job fails because of it, or will fail.
    Fault,
    /// A fault that is mostly the echo of another one: what ranks report when a peer failed or ended, when a
    /// connection had failed before, or while the job is torn down.
    #[serde(rename = "fault")]
    Echo,
    /// It follows from a fault that another line, or another rank, reports.
    Follows,
    /// The message decides which network is used.
    Choice,
    /// The message names something slow, or worth knowing.
    Note,
}

/// How a message is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// It begins with the first of these texts and has the others after it, in this order. A `*` as the first
    /// means that the rest may stand anywhere, a `$` as the last that nothing follows.
    Text(&'static [&'static str]),
    /// The same, in a message from this place in the source.
    In(&'static str, &'static [&'static str]),
    /// A failed work request with this status: number and name of `enum ibv_wc_status`.
    Status(u32, &'static str),
    /// An asynchronous event, by `ibv_event_type_str`.
    Event(&'static str),
    /// A call that a program or a thread of NCCL made failed with this `ncclResult_t`.
    CallResult(u32),
}

impl Pattern {
    /// The words that the message begins with.
    fn first(self) -> &'static str {
        match self {
            Self::Text([first, ..]) => first,
            _ => "",
        }
    }
}

/// One spelling of a message, with what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Stable name, for JSON.
    pub id: &'static str,
    /// Library and versions that print it.
    pub versions: &'static str,
    /// How it is recognised.
    pub pattern: Pattern,
    /// What it is about.
    pub kind: Kind,
    /// What happened.
    pub means: &'static str,
    /// What to do next.
    pub next: &'static str,
}

impl Entry {
    /// Whether it only says that a call failed, and not why.
    pub fn is_only_a_result(&self) -> bool {
        matches!(self.pattern, Pattern::CallResult(_))
    }
}

/// All entries.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    let tables = [
        verbs::COMPLETIONS,
        verbs::EVENTS,
        verbs::CALLS,
        network::ENTRIES,
        // Before the errors of connections, whose words PyTorch quotes.
        results::ENTRIES,
        start::ENTRIES,
        // Before those of plugins that say less.
        others::ENTRIES,
        plugins::ENTRIES,
    ];
    tables.into_iter().flatten()
}

/// How the messages begin that have no head of NCCL's.
pub(super) fn beginnings() -> impl Iterator<Item = &'static str> {
    let tables = [results::ENTRIES, others::ENTRIES].into_iter().flatten();
    tables
        .map(|entry| entry.pattern.first())
        .filter(|first| !first.is_empty())
}

/// The entry for a message, if there is one.
pub fn look_up(text: &str) -> Option<&'static Entry> {
    look_up_in("", text)
}

/// The entry for a message behind this: its writer, and its place in NCCL's source.
pub fn look_up_in(before: &str, text: &str) -> Option<&'static Entry> {
    // Google's plugin is made from the transport IB.
    let of_google = text.strip_prefix("NET/gIB").map(|rest| format!("NET/IB{rest}"));
    let text = of_google.as_deref().unwrap_or(text);
    let mut entries = entries();
    let status = status(text);
    let event = event(text);
    if status.is_none() && event.is_none() {
        let returned = returned(text);
        return entries.find(|entry| match entry.pattern {
            Pattern::Text(words) => matches(text, words),
            Pattern::In(place, words) => before.contains(place) && matches(text, words),
            Pattern::CallResult(result) => returned == Some(result),
            Pattern::Status(..) | Pattern::Event(_) => false,
        });
    }
    entries.find(|entry| match entry.pattern {
        Pattern::Status(number, name) => {
            status == Some(Status::Number(number)) || status == Some(Status::Name(name))
        }
        Pattern::Event(name) => event == Some(name),
        Pattern::Text(_) | Pattern::In(..) | Pattern::CallResult(_) => false,
    })
}

fn matches(text: &str, words: &[&str]) -> bool {
    let (mut rest, mut anywhere) = (text, false);
    words.iter().all(|word| {
        if *word == "*" {
            anywhere = true;
            return true;
        }
        if *word == "$" {
            return rest.trim().is_empty();
        }
        let found = if anywhere {
            rest.find(word)
        } else {
            rest.starts_with(word).then_some(0)
        };
        anywhere = true;
        rest = found
            .and_then(|at| rest.get(at + word.len()..))
            .unwrap_or_default();
        found.is_some()
    })
}

/// The status of a failed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status<'a> {
    Number(u32),
    Name(&'a str),
}

/// `... with error 12, opcode 0 ...` until 2.19, `status=12 ` until 2.28, `status=IBV_WC_RETRY_EXC_ERR(12)`
/// since.
fn status(text: &str) -> Option<Status<'_>> {
    let is_completion =
        text.contains("Got completion ") || (text.contains("ompletion") && text.contains("status=IBV_WC_"));
    let (_, rest) = text
        .split_once(" status=")
        .or_else(|| text.split_once(" with error "))
        .filter(|_| is_completion)?;
    let word = rest
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .next()
        .filter(|word| !word.is_empty())?;
    Some(word.parse().map_or(Status::Name(word), Status::Number))
}

/// `NET/IB : mlx5_0:1 Got async event : port error`, `... async fatal event on QP (0x7f): local ... error`.
fn event(text: &str) -> Option<&str> {
    let is_event = text.starts_with("NET/") && text.contains(" async ") && text.contains(" event");
    let (_, name) = text.rsplit_once(": ").filter(|_| is_event)?;
    let end = name.rfind('(').filter(|_| name.ends_with(')'));
    Some(end.map_or(name, |end| name.get(..end).unwrap_or(name)).trim())
}

/// Names of `ncclResult_t`, from 1 on, without what names the library (src/nccl.h.in), and what
/// `ncclGetErrorString` says of each (src/init.cc). RCCL says the same.
const RESULTS: [(&str, &str); 6] = [
    ("UnhandledCudaError", "unhandled cuda error"),
    ("SystemError", "unhandled system error"),
    ("InternalError", "internal error"),
    ("InvalidArgument", "invalid argument"),
    ("InvalidUsage", "invalid usage"),
    (
        "RemoteError",
        "remote process exited or there was a network error",
    ),
];

/// What a call failed with: `group.cc:64 -> 2 [Async thread]`, the last line of NCCL's trace of places
/// (NCCLCHECK in src/include/checks.h, src/group.cc and src/proxy.cc since 2.4), and what PyTorch prints of
/// it, `ncclSystemError: System call ...`. Places further inside do not count: NCCL also prints them where
/// it goes on without what failed, such as SHARP.
fn returned(text: &str) -> Option<u32> {
    if let Some((name, _)) = text.split_once(':')
        && let Some(name) = name.strip_prefix("nccl").or_else(|| name.strip_prefix("flagcx"))
        && let Some(at) = RESULTS.iter().position(|(result, _)| *result == name)
    {
        return u32::try_from(at + 1).ok();
    }
    let (place, rest) = text.rsplit_once("-> ")?;
    let (result, thread) = rest.split_once(' ').unwrap_or((rest, ""));
    let of_thread = ["[Async thread]", "[Progress Thread]", "[Proxy Thread]"].contains(&thread);
    let of_program = thread.is_empty() && place.contains("group.c");
    let result: u32 = result.parse().ok()?;
    // `group.cc:64`, since 2.30 `group.cc:79 (ncclAsyncJobMain)`.
    let mut words = place.split_whitespace();
    let is_place =
        words.next().is_some_and(|word| word.contains(':')) && words.all(|word| word.starts_with('('));
    (is_place && (of_thread || of_program) && (1..=6).contains(&result)).then_some(result)
}

/// The file of a line of NCCL's trace: `transport/net_ib.cc` of `transport/net_ib.cc:415 -> 2`.
pub(super) fn traced_file(text: &str) -> Option<&str> {
    let (place, result) = text.split_once(" -> ")?;
    let (file, line) = place.split(' ').next()?.split_once(':')?;
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    (is_number(line) && is_number(result.split(' ').next()?)).then_some(file)
}

/// What programs print before the words of an error: PyTorch, vLLM, nccl-tests, XLA, Horovod, CuPy.
const PROGRAMS: [&str; 6] = [
    "NCCL error",
    "NCCL Error ",
    "NCCL failure",
    "NCCL operation ",
    "ncclCommInit",
    "NCCL_ERROR_",
];

/// The entry for what a program prints of a call of NCCL that failed, with the words from those of the error
/// on: `RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)`.
pub(super) fn error_of_program(line: &str) -> Option<(&str, &'static Entry)> {
    let begin = PROGRAMS.iter().filter_map(|program| line.find(program)).min()?;
    let rest = line.get(begin..)?;
    let (result, at) = (1..)
        .zip(RESULTS)
        .find_map(|(result, (_, words))| Some((result, rest.find(words)?)))?;
    let entry = results::ENTRIES
        .iter()
        .find(|entry| entry.pattern == Pattern::CallResult(result))?;
    Some((rest.get(at..)?, entry))
}

/// The place in UCX's source that prints failed work requests of mlx5.
pub(super) const UCX: &str = "ib_mlx5_log.c:";

/// RDMA device that a message names: `hca mlx5_3`, `on dev mlx5_0:1`, `NET/IB : mlx5_3:1 async ...`, or UCX's
/// `on mlx5_0:1/IB`.
pub fn device(text: &str) -> Option<&str> {
    let is_name = |name: &&str| {
        (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+'))
    };
    let word = |rest: &'static str| {
        let (_, rest) = text.split_once(rest)?;
        rest.split([' ', ':', ',']).next().filter(is_name)
    };
    if let Some(name) = word(" hca ")
        .or_else(|| word(" on dev "))
        .or_else(|| word("open device "))
        .or_else(|| word(" on ").filter(|_| text.starts_with(UCX)))
    {
        return Some(name);
    }
    let (network, rest) = text.strip_prefix("NET/")?.split_once(": ")?;
    let (device, port) = rest
        .split(' ')
        .next()
        .filter(|_| is_ib(network))?
        .split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    Some(device).filter(is_name).filter(|_| is_port)
}

/// Whether a fault shows that the job moves data by verbs, whatever the name of its network.
pub fn shows_verbs(before: &str, text: &str, kind: Kind) -> bool {
    let of_verbs = ["NET/IB", "NET/gIB", "Call to ibv_", "ibv_", UCX]
        .iter()
        .any(|word| text.starts_with(word))
        || text.contains("ibv_modify_qp failed")
        || before.contains("transport/net_ib/");
    of_verbs && matches!(kind, Kind::Fault | Kind::Echo | Kind::Follows)
}
