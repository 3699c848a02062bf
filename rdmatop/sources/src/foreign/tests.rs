//! What a hostile user could put at a path, on trees of files.

use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink},
    process::{Command, Stdio},
    time::Instant,
};

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::fake::Fake;

const CONF: &str = "etc/nccl.conf";
const MOST: u64 = 1000;

/// A process of this test's user.
fn fake() -> Fake {
    let fake = Fake::new();
    let own = fs::metadata(fake.root().proc("")).unwrap();
    let (uid, gid) = (own.uid(), own.gid());
    fake.dir("proc/7/root/etc").proc(
        "7/status",
        format!("Name:\tx\nUid:\t9\t9\t9\t{uid}\nGid:\t9\t9\t9\t{gid}\nGroups:\t\n"),
    );
    fake
}

fn of(fake: &Fake) -> Tree {
    Tree::of(&fake.root(), &fake.root().proc("7")).unwrap()
}

/// The content of the file, or the refusal in words.
fn read(fake: &Fake) -> String {
    match of(fake).content(CONF, MOST) {
        Ok(content) => format!("content: {}", String::from_utf8(content).unwrap()),
        Err(refusal) => refusal.to_string(),
    }
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

#[test]
fn only_a_file_inside_the_root_directory_is_read() {
    let fake = fake();
    let link = |target: &str| {
        fake.link(format!("proc/7/root/{CONF}"), target);
        read(&fake)
    };
    fake.proc("7/root/opt/real", "real")
        .proc("7/root/passwd", "its own")
        .proc("7/outside", "secret")
        .proc("passwd", "secret");
    assert!(read(&fake).contains("No such file"));
    for inside in [
        "/opt/real",
        "../opt/real",
        "/etc/../opt/./real",
        "../../../../opt/real",
    ] {
        assert_eq!(link(inside), "content: real", "{inside}");
    }
    assert_eq!(link("../../../passwd"), "content: its own");
    let base = fake.root().proc("7/outside");
    for outside in ["../../outside", "/7/outside", base.to_str().unwrap()] {
        assert!(link(outside).contains("No such file"), "{outside}");
    }
    assert_eq!(link("/opt"), "it is a directory, no file");
    assert_eq!(link("/"), "it is a directory, no file");
    assert!(link("/opt/real/x").contains("Not a directory"));
    assert_eq!(link("nccl.conf"), "the links on its path do not end");
    fake.link("proc/7/root/a", "b/x").link("proc/7/root/b", "a/x");
    assert_eq!(link("/a"), "the links on its path do not end");
    assert_eq!(link(&"./".repeat(2000)), "it is a directory, no file");
    assert!(link(&"x/".repeat(2000)).contains("No such file"));
}

#[test]
fn a_directory_on_the_way_may_be_a_link_and_leads_out_of_nothing() {
    let fake = fake();
    fake.remove("proc/7/root/etc");
    fake.proc("elsewhere/nccl.conf", "secret").dir("proc/7/root/run");
    for outside in ["../../elsewhere", "/../../elsewhere"] {
        fake.link("proc/7/root/etc", outside);
        assert!(read(&fake).contains("No such file"), "{outside}");
    }
    fake.proc("7/root/run/nccl.conf", "real")
        .link("proc/7/root/etc", "/run");
    assert_eq!(read(&fake), "content: real");
}

#[test]
fn what_is_no_file_is_not_opened() {
    let fake = fake();
    let begin = Instant::now();
    let path = fake.root().proc(format!("7/root/{CONF}"));
    fifo(&path);
    assert_eq!(read(&fake), "it is a FIFO, no file");
    assert!(matches!(mapped(&path, |_| Ok(true)), Err(Refusal::Kind(_))));
    // A log may be a pipe that is being written: opening it does not wait for a writer.
    let pipe = log(&path).unwrap();
    assert!(!pipe.metadata().unwrap().is_file());
    assert!(begin.elapsed().as_secs() < 10, "nothing waits");
    drop(std::os::unix::net::UnixListener::bind(fake.root().proc("7/root/socket")).unwrap());
    fake.remove(format!("proc/7/root/{CONF}"))
        .link(format!("proc/7/root/{CONF}"), "/socket");
    assert_eq!(read(&fake), "it is a socket, no file");
    assert_eq!(
        log(&fake.root().proc("")).unwrap_err().to_string(),
        "it is a directory, no file"
    );
    // Devices: as a log, behind a mapping, in a root directory of their own.
    for open in [log, |path: &Path| mapped(path, |_| Ok(true))] {
        let refusal = open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refusal.to_string(), "it is a device, no file");
    }
    fake.remove("proc/7/root").link("proc/7/root", "/dev");
    let refusal = of(&fake).content("null", MOST).unwrap_err();
    assert_eq!(refusal.to_string(), "it is a device, no file");
    fake.remove("proc/7/root").proc("7/root", "x");
    assert!(Tree::of(&fake.root(), &fake.root().proc("7")).is_err());
}

#[test]
fn a_mapped_file_is_opened_only_where_the_mount_that_it_is_on_answers() {
    let own = std::fs::read("/proc/self/mountinfo").unwrap();
    let mut asked = None;
    let refusal = mapped(Path::new("/proc/self/status"), |mount| {
        asked = Some(mount);
        Ok(false)
    });
    assert!(matches!(refusal, Err(Refusal::Waits)));
    assert_eq!(kind_of_mount(&own, asked.unwrap()), Some(&b"proc"[..]));
    assert!(mapped(Path::new("/proc/self/status"), |_| Ok(true)).is_ok());
}

#[test]
fn no_more_is_read_than_the_limit() {
    let fake = fake();
    let path = fake.root().proc(format!("7/root/{CONF}"));
    for (length, whole) in [(MOST, true), (MOST + 1, false), (1 << 40, false)] {
        fs::File::create(&path).unwrap().set_len(length).unwrap();
        let read = of(&fake).content(CONF, MOST);
        match read {
            Ok(content) => assert!(whole && content.len() == 1000, "{length}"),
            Err(refusal) => {
                assert!(!whole && matches!(refusal, Refusal::TooLarge(_)), "{refusal}");
            }
        }
    }
    for number in 0..=NAMES {
        fake.proc(format!("7/root/dev/{number}"), "");
    }
    assert!(matches!(of(&fake).names("dev"), Err(Refusal::TooLarge(_))));
    fake.remove("proc/7/root/dev/0");
    assert_eq!(of(&fake).names("dev").unwrap().len(), NAMES);
}

#[test]
fn only_what_its_user_could_read_is_read() {
    let fake = fake();
    fake.proc(format!("7/root/{CONF}"), "x");
    let own = fs::metadata(fake.root().proc("")).unwrap();
    let status = |uid: u32, gid: u32, groups: &str| {
        let text = format!("Uid:\t1\t1\t1\t{uid}\nGid:\t1\t1\t1\t{gid}\nGroups:\t{groups}\n");
        fake.proc("7/status", text);
    };
    let mode = |path: &str, mode: u32| {
        let path = fake.root().proc("7/root").join(path);
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let (uid, gid) = (own.uid(), own.gid());
    let (other, group) = (uid + 4242, gid + 4242);
    let refused = "the user of the process may not read it";
    for (user, group, groups, bits, may) in [
        (uid, gid, "", 0o600, true),
        (uid, gid, "", 0o004, false),
        (other, gid, "", 0o640, true),
        (other, gid, "", 0o604, false),
        (other, group, &*format!("1 {gid} 2"), 0o640, true),
        (other, group, "1 2", 0o640, false),
        (other, group, "1 2", 0o604, true),
        (other, group, "", 0o600, false),
    ] {
        status(user, group, groups);
        mode(CONF, bits);
        // A test without root may not read what its own mode forbids.
        let read = read(&fake);
        assert_eq!(
            read == "content: x",
            may,
            "{user} {group} {groups} {bits:o}: {read}"
        );
        assert!(may || read == refused, "{read}");
    }
    // A directory that the user may not search hides what is below it, whatever the file's mode is.
    status(other, group, "");
    mode(CONF, 0o644);
    // What the names in a directory are, and whether there is a file, is told no more freely.
    let told = || {
        let tree = Tree::of(&fake.root(), &fake.root().proc("7")).unwrap();
        let names = tree.names("etc").map(|names| names.len());
        let said = |refusal: Refusal| refusal.to_string();
        (names.map_err(said), tree.find(CONF).map(|_| ()).map_err(said))
    };
    assert_eq!((read(&fake).as_str(), told()), ("content: x", (Ok(1), Ok(()))));
    mode("etc", 0o711);
    assert_eq!(told(), (Err(refused.into()), Ok(())));
    mode("etc", 0o700);
    assert_eq!(read(&fake), refused);
    assert_eq!(told(), (Err(refused.into()), Err(refused.into())));
    // If the user of a process is unknown, only files that everybody may read are read.
    mode("etc", 0o755);
    fake.remove("proc/7/status");
    assert_eq!(read(&fake), "content: x");
    mode(CONF, 0o600);
    assert_eq!(read(&fake), refused);
}

#[test]
fn no_other_mount_is_entered_but_those_that_the_kernel_fills() {
    let fake = fake();
    fake.remove("proc/7/root").link("proc/7/root", "/");
    let tree = of(&fake);
    let refusal = tree.content("proc/version", MOST).unwrap_err();
    assert!(matches!(refusal, Refusal::OtherMount), "{refusal}");
    let refusal = tree.names("proc").unwrap_err();
    assert!(
        matches!(refusal, Refusal::OtherMount),
        "its table is not known: {refusal}"
    );
    fake.link("proc/7/mountinfo", "/proc/self/mountinfo");
    let refusal = tree.names("proc").unwrap_err();
    assert!(matches!(refusal, Refusal::OtherMount), "a procfs: {refusal}");
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let sys = Found::at(Path::new("/sys")).unwrap();
    if kind_of_mount(&table, sys.facts.stx_mnt_id) == Some(b"sysfs") {
        assert!(tree.names("sys").unwrap().contains(&OsString::from("kernel")));
        let refusal = tree.content("sys/kernel/uevent_seqnum", MOST).unwrap_err();
        assert!(matches!(refusal, Refusal::OtherMount), "{refusal}");
    } else {
        println!("SKIPPED sysfs: /sys is none here");
    }
    // With rdmatop's own root directory the mounts are the machine's.
    let own = Tree::of(&Root::default(), Path::new("/proc/self")).unwrap();
    assert!(own.content("proc/version", MOST).is_ok());
    // A link of procfs is no way out: it is read as a link to a name.
    fake.link("proc/7/root", "/proc");
    let refusal = of(&fake).content("self/root/etc/passwd", MOST).unwrap_err();
    assert!(refusal.to_string().contains("No such file"), "{refusal}");
}

#[test]
fn the_type_of_a_mount_follows_its_optional_fields() {
    let table = b"36 35 98:0 /a\\040- /m rw,noatime master:1 shared:2 - ext3 /dev/root rw\n\
                  37 35 0:5 / /dev rw - devtmpfs - rw\n38 35\n39 1 0:5 / /x rw\n";
    assert_eq!(kind_of_mount(table, 36), Some(&b"ext3"[..]));
    assert_eq!(kind_of_mount(table, 37), Some(&b"devtmpfs"[..]));
    for none in [0, 38, 39, 40] {
        assert_eq!(kind_of_mount(table, none), None);
    }
}

proptest! {
    #[test]
    fn no_text_of_the_kernel_and_no_link_panics(raw: Vec<u8>, target in "[a-z./]{1,40}", id: u64) {
        let _ = kind_of_mount(&raw, id);
        let fake = fake();
        fake.proc("secret", "secret").link(format!("proc/7/root/{CONF}"), target);
        prop_assert!(!read(&fake).starts_with("content"));
    }
}

#[test]
fn a_descriptor_of_a_path_alone_has_no_device_open() {
    let of = |flags| {
        let file = open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        character_device(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
    };
    let null = Some((1, 3));
    // The last is access mode 3: it takes requests alone.
    for flags in [
        OFlags::RDONLY,
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::from_bits_retain(3),
    ] {
        assert_eq!(of(flags), null, "{flags:?}");
    }
    assert_eq!(of(OFlags::PATH), None);
}

/// The log's content, or the refusal in words.
fn read_log(path: impl AsRef<Path>) -> String {
    let read = log(path.as_ref()).and_then(|mut file| {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(text)
    });
    read.map_or_else(|refusal| refusal.to_string(), |text| format!("content: {text}"))
}

#[test]
fn a_link_to_a_pipe_of_another_process_is_no_log_and_takes_nothing() {
    const MAGIC: &str = "a link of /proc leads there, to what a process has open: name the file itself";
    let dir = tempfile::tempdir().unwrap();
    let mut sleeps = Command::new("sleep");
    let mut other = sleeps.arg("60").stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = other.stdin.take().unwrap();
    pipe.write_all(b"1 line\n").unwrap();
    let (fd, cwd) = (
        format!("/proc/{}/fd", other.id()),
        format!("/proc/{}/cwd", other.id()),
    );
    for (name, target) in [
        ("pipe", format!("{fd}/0")),
        ("fd", fd.clone()),
        ("fd/0", String::new()),
        ("cwd", cwd.clone()),
        ("cwd/Cargo.toml", String::new()),
        ("again", "pipe".into()),
    ] {
        if !target.is_empty() {
            symlink(&target, dir.path().join(name)).unwrap();
        }
        let said = read_log(dir.path().join(name));
        // A directory of descriptors is no link.
        assert!(
            said == MAGIC || name == "fd" && said == "it is a directory, no file",
            "{name}: {said}"
        );
    }
    // Neither is one followed where the path itself has it, unless it is rdmatop's own.
    for path in [
        format!("{fd}/0"),
        format!("{cwd}/Cargo.toml"),
        "/proc/self/cwd/Cargo.toml".into(),
    ] {
        assert_eq!(read_log(path), MAGIC);
    }
    assert_eq!(rustix::io::ioctl_fionread(&pipe), Ok(7), "nothing was read");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_log_that_is_an_open_descriptor_of_rdmatop_s_own_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("log"), "file").unwrap();
    let opened = File::open(dir.path()).unwrap();
    for place in ["/dev/fd", "/proc/self/fd"] {
        let (from, mut into) = std::io::pipe().unwrap();
        into.write_all(b"pipe").unwrap();
        drop(into);
        assert_eq!(read_log(format!("{place}/{}", from.as_raw_fd())), "content: pipe");
        let file = File::open(dir.path().join("log")).unwrap();
        assert_eq!(read_log(format!("{place}/{}", file.as_raw_fd())), "content: file");
        // What lies below an open directory, and a way about, are as any other path.
        for other in [
            format!("{place}/{}/log", opened.as_raw_fd()),
            format!("{place}/../fd/{}", file.as_raw_fd()),
        ] {
            assert!(read_log(&other).contains("a link of /proc"), "{other}");
        }
    }
    assert!(is_descriptor(Path::new("/dev/stdin")));
}

#[test]
fn links_to_logs_are_followed_where_their_owner_owns_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("run")).unwrap();
    fs::write(at("run/log"), "x").unwrap();
    for (name, target) in [
        ("a", "run/../run/log"),
        ("b", "./a"),
        ("latest", "run/"),
        ("run/up", ".."),
        ("loop", "loop"),
        ("none", "run/none"),
        ("run/whole", at("run/log").to_str().unwrap()),
    ] {
        symlink(target, at(name)).unwrap();
    }
    let paths = [
        "run/log",
        "a",
        "b",
        "latest/log",
        "latest/up/latest/log",
        "run/whole",
    ];
    for path in paths {
        assert_eq!(read_log(at(path)), "content: x", "{path}");
    }
    assert_eq!(read_log(at("loop")), "the links on its path do not end");
    assert_eq!(read_log(at("latest")), "it is a directory, no file");
    for none in [at("none"), at("latest/none"), PathBuf::new()] {
        assert!(read_log(&none).contains("No such file"), "{none:?}");
    }
    if !getuid().is_root() {
        println!("SKIPPED links of other users: this test is not root's");
        return;
    }
    let (user, other) = (4242, 4343);
    let give = |name: &str, uid: u32| lchown(at(name), Some(uid), None).unwrap();
    for (file, link, follows) in [
        (user, user, true),
        (user, 0, true),
        (user, other, false),
        (0, user, false),
    ] {
        give("run/log", file);
        for name in ["a", "b", "latest", "run/up", "run/whole"] {
            give(name, 0);
        }
        assert_eq!(read_log(at("b")), "content: x");
        let refusal =
            format!("a link of user {link} leads there, to a file of user {file}: name that file itself");
        let wanted = if follows { "content: x" } else { &refusal };
        // Each of these has that link at its end, in its middle, or behind another one.
        for (name, path) in [
            ("a", "a"),
            ("a", "b"),
            ("latest", "latest/log"),
            ("run/up", "latest/up/b"),
        ] {
            give(name, link);
            assert_eq!(read_log(at(path)), wanted, "{path}: {file} {link}");
            give(name, 0);
        }
    }
}

#[test]
fn a_file_that_the_kernel_makes_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    for path in [
        "/proc/version",
        "/sys/kernel/uevent_seqnum",
        "/sys/kernel/tracing/trace_pipe",
    ] {
        if !Path::new(path).exists() {
            println!("SKIPPED {path}: it is not here");
            continue;
        }
        let link = dir.path().join(path.replace('/', "_"));
        symlink(path, &link).unwrap();
        for path in [Path::new(path), &link] {
            assert_eq!(read_log(path), "it is a file that the kernel makes, no log");
        }
    }
}
