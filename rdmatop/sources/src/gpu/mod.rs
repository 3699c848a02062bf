//! Where GPUs are, which processes compute on them, and how busy they are, by NVML and its GPU performance
//! monitoring (GPM: Hopper and later; of others it is not known how busy they are).
//!
//! NVML's `utilization.gpu` is of no use here: it is the time in which any kernel runs, and a kernel of NCCL
//! that waits for a peer runs too. GPM measures how many multiprocessors have work, and the time of tensor
//! cores: a waiting kernel occupies a few multiprocessors and no tensor core.
//!
//! The library is the driver's `libnvidia-ml.so.1`, loaded when it is needed. A driver may take seconds for
//! an answer, or give none, so a thread of its own asks.

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    sync::Arc,
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper::{
    Device, GpmSample, Nvml, enums::gpm::GpmMetricId, error::NvmlError, gpm::gpm_metrics_get,
};

use super::{clock::now, privileges, root::Root, sysfs::read_pci_at};
use rdmatop_model::input::{GpuActivity, GpuPlace, GpuReading, GpuSample};

/// The library of NVIDIA's driver that answers for NVML.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Time between two readings, ns. GPM wants 100 ms at least.
const EVERY: u64 = 1_000_000_000;
/// How long the last reading is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    ask: SyncSender<()>,
    answers: Receiver<GpuSample>,
    /// When they were asked last, ns, and whether the answer is still to come.
    asked_ns: u64,
    waits: bool,
}

impl Gpus {
    /// The GPUs that the driver lists; `None` when there is no driver, or no GPU.
    pub fn of(root: &Root) -> Option<Self> {
        are_listed(root)
            .then(|| Self::by(LIBRARY, root.clone()))
            .flatten()
    }

    /// The GPUs that this library knows.
    fn by(library: &str, root: Root) -> Option<Self> {
        let (ask, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let library = library.to_owned();
        let serve = move || {
            // The library needs none of rdmatop's rights.
            privileges::renounce();
            // Without the library the thread ends, and there are no answers.
            if let Err(error) = serve(&library, &root, &asked, &answer) {
                log::info!(library = library.as_str(), why:% = error; "no GPUs");
            }
        };
        thread::Builder::new().name("gpus".to_owned()).spawn(serve).ok()?;
        Some(Self {
            ask,
            answers,
            asked_ns: 0,
            waits: false,
        })
    }

    /// Returns what the GPUs did between the last two readings, if that is new, and asks the thread for the
    /// next reading. `Err`: no reading will come any more.
    pub fn poll(&mut self) -> Result<Option<GpuSample>, NoGpus> {
        let answer = match self.answers.try_recv() {
            Ok(sample) => Some(sample),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => return Err(NoGpus),
        };
        self.waits &= answer.is_none();
        let now_ns = now().mono_ns;
        if !self.waits && now_ns.saturating_sub(self.asked_ns) >= EVERY {
            (self.waits, self.asked_ns) = (self.ask.try_send(()).is_ok(), now_ns);
        }
        Ok(answer.filter(is_whole))
    }

    /// For the end of a run: waits for a last reading, up to `PATIENCE`, and returns what the GPUs did since
    /// the reading before.
    pub fn finish(&mut self) -> Option<GpuSample> {
        let end = Instant::now() + PATIENCE;
        let wait = || {
            self.answers
                .recv_timeout(end.saturating_duration_since(Instant::now()))
        };
        if self.waits {
            wait().ok()?;
        }
        self.ask.try_send(()).ok()?;
        wait().ok().filter(is_whole)
    }
}

/// Whether NVIDIA's driver lists a GPU.
pub fn are_listed(root: &Root) -> bool {
    let gpus = root.list(&root.proc("driver/nvidia/gpus"));
    gpus.is_some_and(|gpus| !gpus.is_empty())
}

/// Whether memory of a GPU may be registered as the host's is, by its address. A module can give NICs such
/// memory: nvidia_peermem, nv_peer_mem, efa_nv_peermem, bnxt_peer_mem or another client of a vendor's
/// ib_core. amzn-drivers' efa can by itself. And where GPU and CPU share page tables (GH200, GB10), which no
/// x86-64 has, it is memory like other memory.
fn takes_addresses(root: &Root) -> bool {
    let named = |name: &OsString| {
        let name = name.as_encoded_bytes();
        name.windows(7).any(|part| part == b"peermem") || name.windows(8).any(|part| part == b"peer_mem")
    };
    let modules = root.list(&root.sys("module"));
    let clients = root.list(&root.sys("kernel/mm/memory_peers"));
    let efa = root.bytes(&root.sys("module/efa/taint"), 64);
    cfg!(not(target_arch = "x86_64"))
        || modules.is_none_or(|modules| modules.iter().any(named))
        || clients.is_some_and(|clients| !clients.is_empty())
        || efa.is_some_and(|taint| taint.contains(&b'O'))
}

/// Activity is a difference of two readings, so the first reading alone is not an answer.
fn is_whole(sample: &GpuSample) -> bool {
    sample.before_ns > 0
}

/// The driver's library cannot be loaded, or knows no GPU.
#[derive(Clone, Copy, Debug)]
pub struct NoGpus;

/// Reads the GPUs each time that `asked` says so, until its other end is dropped.
fn serve(
    library: &str,
    root: &Root,
    asked: &Receiver<()>,
    answer: &SyncSender<GpuSample>,
) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_ref()).init()?;
    let mut gpus = Vec::new();
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        gpus.push(Gpu {
            place: place(&device, root),
            has_gpm: device.gpm_support().is_ok_and(|has| has),
            device,
            last: None,
        });
    }
    if gpus.is_empty() {
        return Ok(());
    }
    let mut before_ns = 0;
    while asked.recv().is_ok() {
        let readings = gpus.iter_mut().map(|gpu| gpu.read(&nvml)).collect();
        let mono_ns = now().mono_ns;
        let sample = GpuSample {
            before_ns,
            mono_ns,
            gpus: readings,
            takes_addresses: takes_addresses(root),
        };
        before_ns = mono_ns;
        if answer.send(sample).is_err() {
            break;
        }
    }
    Ok(())
}

/// Where a GPU is; `None` when the library does not say.
fn place(device: &Device<'_>, root: &Root) -> Option<Arc<GpuPlace>> {
    let pci = device.pci_info().ok()?;
    let address = format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    let facts = read_pci_at(root, &address);
    Some(Arc::new(GpuPlace {
        node: facts.as_ref().and_then(|facts| facts.numa_node),
        path: facts.map_or_else(Vec::new, |facts| facts.path.to_vec()),
        address,
    }))
}

struct Gpu<'a> {
    place: Option<Arc<GpuPlace>>,
    has_gpm: bool,
    device: Device<'a>,
    last: Option<GpmSample<'a>>,
}

impl<'a> Gpu<'a> {
    fn read(&mut self, nvml: &'a Nvml) -> GpuReading {
        let sample = self.has_gpm.then(|| self.device.gpm_sample().ok()).flatten();
        let both = self.last.as_ref().zip(sample.as_ref());
        let activity = both.and_then(|(before, after)| activity(nvml, before, after));
        self.last = sample;
        let processes = self.device.running_compute_processes().ok();
        GpuReading {
            place: self.place.clone(),
            activity,
            processes: processes.map(|all| all.into_iter().map(|process| process.pid).collect()),
        }
    }
}

fn activity<'a>(nvml: &'a Nvml, before: &GpmSample<'a>, after: &GpmSample<'a>) -> Option<GpuActivity> {
    let wanted = [GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil];
    let results = gpm_metrics_get(nvml, before, after, &wanted).ok()?;
    let share = |id: GpmMetricId| {
        let mut results = results.iter().flatten();
        let percent = results.find(|result| result.metric_id == id)?.value;
        (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
    };
    Some(GpuActivity {
        sms: share(GpmMetricId::SmUtil)?,
        tensor: share(GpmMetricId::AnyTensorUtil)?,
    })
}
