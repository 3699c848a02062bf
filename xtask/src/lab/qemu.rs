//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::arch::Arch;

/// How guest instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    /// Translated, with one host thread per guest CPU.
    Tcg,
    /// Translated, with all guest CPUs in turn on one host thread: when one of them changes code, all see it.
    Single,
    /// Translated in one thread; the guest's clock counts instructions, 1 ns each.
    Icount,
    /// Executed by the host's CPU.
    Kvm,
}

/// One virtual machine.
pub(crate) struct Vm {
    /// The architecture.
    pub(crate) arch: Arch,
    /// How instructions are executed.
    pub(crate) accel: Accel,
    /// Number of CPUs.
    pub(crate) cpus: u32,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Boot image.
    pub(crate) kernel: PathBuf,
    /// Initramfs.
    pub(crate) initramfs: PathBuf,
    /// Directory of the run's sockets, console.log and qemu.log.
    pub(crate) run_dir: PathBuf,
    /// The guest's root directory, if it is not this machine's.
    pub(crate) root: Option<PathBuf>,
    /// The job share.
    pub(crate) job: PathBuf,
    /// The share for results.
    pub(crate) out: PathBuf,
    /// Whether the job gets a terminal instead of two output streams.
    pub(crate) terminal: bool,
    /// QEMU options for a NIC.
    pub(crate) nic: Vec<String>,
}

/// Quotes a path: in QEMU's options a comma ends a value, and a doubled comma stands for one.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

impl Vm {
    /// Returns how instructions are executed, the CPU model, and the option that counts its instructions.
    fn cpu(&self) -> (&'static str, &'static str, Option<&'static str>) {
        // QEMU 7.2's translator emulates cmpxchg16b wrongly. It executes rep stosb and movsb byte by byte:
        // with icount each byte counts as an instruction, and otherwise it costs as much time. If the CPU
        // does not announce fast ones, kernel and libc use loops of words. Four levels of page tables are one
        // less to walk than five. Together this saves a quarter of the CPU time of a start of rdmatop in a
        // guest with one CPU, and about a twentieth with two. The ARM model is a server CPU with atomic
        // instructions, but without signed pointers, whose cipher takes a quarter of the translator's time.
        let x86 = self.arch == Arch::X86_64;
        let arm = "neoverse-n1";
        let cpu = |name| if x86 { name } else { arm };
        match self.accel {
            Accel::Tcg => ("tcg,thread=multi", cpu("max,-cx16,-erms,-fsrm,-la57"), None),
            Accel::Single => ("tcg,thread=single", cpu("max,-cx16,-erms,-fsrm,-la57"), None),
            Accel::Icount => ("tcg,thread=single", cpu("max,-cx16,-erms,-fsrm"), Some("shift=0")),
            Accel::Kvm => ("kvm", "host", None),
        }
    }

    /// Returns the arguments of `qemu-system-...`.
    pub(crate) fn args(&self) -> Vec<OsString> {
        let (accel, cpu, icount) = self.cpu();
        let (machine, console) = match self.arch {
            Arch::X86_64 => ("q35", "ttyS0"),
            Arch::Aarch64 => ("virt,gic-version=3", "ttyAMA0"),
        };
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
        add(&[
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-machine",
            machine,
        ]);
        add(&[
            "-accel",
            accel,
            "-cpu",
            cpu,
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &self.memory.to_string(),
        ]);
        if let Some(icount) = icount {
            add(&["-icount", icount]);
        }
        add(&[
            "-kernel",
            &self.kernel.to_string_lossy(),
            "-initrd",
            &self.initramfs.to_string_lossy(),
        ]);
        // An oops ends the guest at once with a reason; otherwise a hung job would run into its timeout.
        let mut append =
            format!("console={console} loglevel=4 panic=-1 oops=panic random.trust_cpu=on rdinit=/init");
        // Linux 5.10 panics (setup_IO_APIC) if the timer does not tick within its first ten ticks, which can
        // happen on a loaded host. With counted instructions the host's load has no effect.
        if self.arch == Arch::X86_64 && self.accel != Accel::Icount {
            append.push_str(" no_timer_check");
        }
        add(&["-append", &append]);
        let console = value(&self.run_dir.join("console.log"));
        add(&[
            "-chardev",
            &format!("file,id=console,path={console}"),
            "-serial",
            "chardev:console",
        ]);
        add(&["-device", "virtio-serial-pci,max_ports=8"]);
        // A slot whose link is slower than possible: the slot supports 16 GT/s and 16 lanes, QEMU's devices
        // only 2.5 GT/s and one lane. Tests put a card into it.
        add(&[
            "-device",
            "pcie-root-port,id=slow,chassis=1,hotplug=off,x-speed=16,x-width=16",
            "-device",
            "virtio-rng-pci,bus=slow",
        ]);
        for port in self.ports() {
            let socket = value(&self.run_dir.join(format!("{port}.sock")));
            add(&["-chardev", &format!("socket,id={port},path={socket}")]);
            let device = if *port == "tty" {
                "virtconsole"
            } else {
                "virtserialport"
            };
            add(&["-device", &format!("{device},chardev={port},name=lab.{port}")]);
        }
        let machine = Path::new("/");
        let root = self.root.as_deref();
        let mut shares = vec![
            ("host", root.unwrap_or(machine), "readonly=on,"),
            ("job", &self.job, "readonly=on,"),
            ("out", &self.out, ""),
        ];
        shares.extend(root.map(|_| ("files", machine, "readonly=on,")));
        for (tag, path, mode) in shares {
            let share = format!(
                "local,id={tag},path={},{mode}security_model=none,multidevs=remap",
                value(path)
            );
            add(&[
                "-fsdev",
                &share,
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            ]);
        }
        args.extend(self.nic.iter().map(OsString::from));
        args
    }

    /// Returns the names of the sockets that QEMU connects to.
    pub(crate) fn ports(&self) -> &'static [&'static str] {
        if self.terminal {
            &["ctl", "tty"]
        } else {
            &["ctl", "out", "err"]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(accel: Accel, terminal: bool) -> String {
        vm_of(Arch::X86_64, accel, terminal)
    }

    fn vm_of(arch: Arch, accel: Accel, terminal: bool) -> String {
        let vm = Vm {
            arch,
            root: (arch == Arch::Aarch64).then(|| "/a".into()),
            accel,
            cpus: 2,
            memory: 2048,
            kernel: "/k".into(),
            initramfs: "/i".into(),
            run_dir: "/r".into(),
            job: "/j,1".into(),
            out: "/o".into(),
            terminal,
            nic: vec!["-device".into(), "pvrdma".into()],
        };
        let words: Vec<String> = vm
            .args()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn icount_runs_one_thread() {
        let line = vm(Accel::Icount, false);
        assert!(line.contains("-icount shift=0"), "{line}");
        assert!(line.contains("thread=single"), "{line}");
        assert!(!vm(Accel::Tcg, false).contains("icount"));
    }

    #[test]
    fn no_translated_cpu_has_fast_repeated_strings() {
        for accel in [Accel::Tcg, Accel::Single, Accel::Icount] {
            let line = vm(accel, false);
            assert!(line.contains("-cpu max,-cx16,-erms,-fsrm"), "{line}");
        }
    }

    #[test]
    fn single_threaded_is_plain_translation_in_one_thread() {
        let (single, multi) = (vm(Accel::Single, false), vm(Accel::Tcg, false));
        assert_eq!(single, multi.replace("thread=multi", "thread=single"));
        assert!(multi.contains("thread=multi"), "{multi}");
    }

    #[test]
    fn a_loaded_host_is_no_broken_timer() {
        assert!(vm(Accel::Tcg, false).contains("rdinit=/init no_timer_check "));
        assert!(!vm(Accel::Icount, false).contains("no_timer_check"));
    }

    #[test]
    fn the_hosts_root_is_read_only_and_the_results_are_not() {
        let line = vm(Accel::Tcg, false);
        assert!(line.contains("id=host,path=/,readonly=on"), "{line}");
        assert!(line.contains("id=out,path=/o,security_model=none"), "{line}");
    }

    #[test]
    fn a_root_for_another_machine_comes_with_the_hosts_files() {
        let line = vm_of(Arch::Aarch64, Accel::Tcg, false);
        assert!(line.contains("-machine virt,"), "{line}");
        assert!(line.contains("id=host,path=/a,readonly=on"), "{line}");
        assert!(line.contains("id=files,path=/,readonly=on"), "{line}");
        assert!(!line.contains("no_timer_check"), "{line}");
        assert!(!vm(Accel::Tcg, false).contains("id=files"));
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        assert!(vm(Accel::Tcg, false).contains("path=/j,,1,readonly=on"));
    }

    #[test]
    fn a_nic_has_its_options() {
        assert!(vm(Accel::Tcg, false).ends_with("-device pvrdma"));
    }

    #[test]
    fn a_terminal_takes_the_place_of_the_two_streams() {
        let line = vm(Accel::Tcg, true);
        assert!(line.contains("virtconsole,chardev=tty"), "{line}");
        assert!(!line.contains("lab.out"), "{line}");
    }
}
