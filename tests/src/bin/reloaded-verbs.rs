//! Loads libibverbs and its providers, uses them, and unloads them, several times.
//!
//! `reloaded-verbs [--device rxe0] [--count 100] [--loads 3]` loads a library that is linked with libibverbs,
//! connects two QPs, prints `{"ready":true,"pid":..,"qpn":..,"at":..,"load":N}` and waits for a line on
//! stdin. Then it posts COUNT + N work requests, destroys its QPs, unloads libibverbs and the provider,
//! prints `{"unloaded":N,"posted":..}` and waits for a line again. The next load is at another address. With
//! `--then-exec COMMAND` nothing is unloaded after the last load: with its QPs alive the process becomes that
//! command, whose words are separated by spaces.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs, io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    ptr,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::args::{Args, report};
use serde_json::json;

/// A part of the file name of the provider's mapping.
const PROVIDER: &str = "librxe";
/// A part of the names of libibverbs and of its providers' directory.
const IBVERBS: &str = "libibverbs";

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device = CString::new(args.value("--device", String::from("rxe0"))?)?;
    let count: u64 = args.value("--count", 100)?;
    let loads: u64 = args.value("--loads", 3)?;
    let then: String = args.value("--then-exec", String::new())?;
    args.finish()?;
    ensure!(
        mapped(IBVERBS)?.is_empty(),
        "this program is linked with libibverbs"
    );
    for load in 0..loads {
        let plugin = Plugin::load()?;
        let place = mapped(PROVIDER)?
            .first()
            .context("no provider is mapped")?
            .clone();
        // SAFETY: these are the functions of plugin.c; the name outlives the call.
        let pair = unsafe { (plugin.open)(device.as_ptr()) };
        // SAFETY: `open` returned `pair`.
        let qpn = unsafe { (plugin.qpn)(pair) };
        let at = place.from;
        report(&json!({"ready": true, "pid": std::process::id(), "qpn": qpn, "at": at, "load": load}))?;
        line()?;
        // SAFETY: as above.
        unsafe { (plugin.post)(pair, count + load) };
        if load + 1 == loads && !then.is_empty() {
            let mut words = then.split(' ');
            let program = words.next().unwrap_or_default();
            return Err(Command::new(program).args(words).exec().into());
        }
        // SAFETY: as above; `pair` is not used afterwards.
        unsafe { (plugin.close)(pair) };
        plugin.unload(&place.path)?;
        for name in [IBVERBS, PROVIDER] {
            ensure!(mapped(name)?.is_empty(), "{name} is still mapped");
        }
        occupy(&place)?;
        report(&json!({"unloaded": load, "posted": count + load}))?;
        line()?;
    }
    Ok(())
}

/// Reads a line of stdin.
fn line() -> Result<()> {
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

type Open = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Qpn = unsafe extern "C" fn(*const c_void) -> u32;
type Post = unsafe extern "C" fn(*mut c_void, u64);
type Close = unsafe extern "C" fn(*mut c_void);

/// The library of `verbs/plugin.c`.
struct Plugin {
    handle: *mut c_void,
    open: Open,
    qpn: Qpn,
    post: Post,
    close: Close,
}

impl Plugin {
    fn load() -> Result<Self> {
        let handle = dlopen(env!("RDMATOP_PLUGIN"), libc::RTLD_NOW)?;
        // libibverbs loads providers only when it is asked for devices.
        // SAFETY: the types are those of libibverbs, and the list is freed once.
        unsafe {
            let list: unsafe extern "C" fn(*mut c_int) -> *mut c_void =
                std::mem::transmute(symbol(handle, c"ibv_get_device_list")?);
            let free: unsafe extern "C" fn(*mut c_void) =
                std::mem::transmute(symbol(handle, c"ibv_free_device_list")?);
            let devices = list(ptr::null_mut());
            ensure!(!devices.is_null(), "no list of devices");
            free(devices);
        }
        // SAFETY: plugin.c defines the functions with these arguments.
        unsafe {
            Ok(Self {
                handle,
                open: std::mem::transmute::<*mut c_void, Open>(symbol(handle, c"plugin_open")?),
                qpn: std::mem::transmute::<*mut c_void, Qpn>(symbol(handle, c"plugin_qpn")?),
                post: std::mem::transmute::<*mut c_void, Post>(symbol(handle, c"plugin_post")?),
                close: std::mem::transmute::<*mut c_void, Close>(symbol(handle, c"plugin_close")?),
            })
        }
    }

    /// Unloads everything. libibverbs loads all installed providers and never closes them, and each provider
    /// holds libibverbs: this closes these handles in its place.
    fn unload(self, provider: &str) -> Result<()> {
        let providers = Path::new(provider).parent().context("no directory")?;
        for entry in fs::read_dir(providers)? {
            let path = entry?.path();
            // Does not load a provider that is not loaded.
            let loaded = dlopen(&path.to_string_lossy(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            for handle in loaded.into_iter().flat_map(|handle| [handle, handle]) {
                close(handle)?;
            }
        }
        close(self.handle)
    }
}

fn dlopen(path: &str, flags: c_int) -> Result<*mut c_void> {
    let name = CString::new(path)?;
    // SAFETY: a string is passed; the library's constructors need nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    ensure!(!handle.is_null(), "dlopen {path}: {}", dlerror());
    Ok(handle)
}

fn close(handle: *mut c_void) -> Result<()> {
    // SAFETY: dlopen returned it, and the handle is still counted for this program or for libibverbs.
    ensure!(unsafe { libc::dlclose(handle) } == 0, "dlclose: {}", dlerror());
    Ok(())
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void> {
    // SAFETY: an open library and a string are passed.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() {
        bail!("no {name:?}: {}", dlerror());
    }
    Ok(found)
}

fn dlerror() -> String {
    // SAFETY: it returns a string or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason".to_owned();
    }
    // SAFETY: it is not null, and valid until this thread calls these functions again.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The address range of a mapped file.
#[derive(Clone)]
struct Place {
    from: usize,
    to: usize,
    path: String,
}

/// Returns the mappings of files with this in their names.
fn mapped(name: &str) -> Result<Vec<Place>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let place = |line: &str| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let path = line.split_whitespace().nth(5)?;
        path.contains(name).then(|| {
            Some(Place {
                from: usize::from_str_radix(from, 16).ok()?,
                to: usize::from_str_radix(to, 16).ok()?,
                path: path.to_owned(),
            })
        })?
    };
    Ok(maps.lines().filter_map(place).collect())
}

/// Maps something else at the provider's old address, so that the next load gets another one.
fn occupy(place: &Place) -> Result<()> {
    // SAFETY: nothing is mapped there, and with MAP_FIXED_NOREPLACE the kernel refuses if there is.
    let got = unsafe {
        libc::mmap(
            place.from as *mut c_void,
            place.to - place.from,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    ensure!(got as usize == place.from, "mmap: {}", io::Error::last_os_error());
    Ok(())
}
