//! Makes the container image without a daemon: an OCI layout in a tar file. It has rdmatop, Debian's glibc,
//! and busybox for `kubectl exec`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tree::{self, PACKAGE, said_by};
use super::{VERSION, tarball};
use crate::arch::Arch;
use crate::lab::archive;
use crate::{paths, setup};

/// The Debian suite of the packages in the image.
const SUITE: &str = "trixie";
const PACKAGES: [&str; 2] = ["busybox-static", "libc6"];
const TITLE: &str = "dist: glibc and busybox of the image";

/// Names linked to busybox: to wait, to look around, and for `kubectl cp`.
const BUSYBOX: [&str; 10] = [
    "cat", "env", "grep", "head", "less", "ls", "sh", "sleep", "tail", "tar",
];

/// The image's name in deploy/kubernetes.
const NAME: &str = "docker.io/library/rdmatop:local";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Makes the image of the tree `prefix` in `out` and checks it. Returns which Debian packages are in it.
pub(super) fn make(prefix: &Path, arch: Arch, epoch: u64, work: &Path, out: &Path) -> Result<String> {
    let work = work.join(format!("oci-{}", arch.name()));
    let layout = work.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256"))
        .with_context(|| format!("cannot create {}", layout.display()))?;
    let debs = debs(arch)?;
    let versions = described(&debs, arch)?;
    let base = base(&debs, &work)?;
    let layers = [base, own(prefix, &work)?].map(|root| layer(&root, &layout, epoch));
    let layers = layers.into_iter().collect::<Result<Vec<_>>>()?;
    let date = said_by(Command::new("date").args(["--utc", "+%FT%TZ", &format!("--date=@{epoch}")]))?;
    let created = String::from_utf8_lossy(&date).trim().to_owned();
    let config = json!({
        "created": created,
        "architecture": arch.debian(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["sleep", "infinity"],
            "Labels": {
                "org.opencontainers.image.title": PACKAGE,
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "(MIT OR Apache-2.0) AND LGPL-2.1-or-later AND GPL-2.0-only",
                "rdmatop.packages": versions,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| &layer.unpacked).collect::<Vec<_>>()},
        "history": [
            {"created": created, "created_by": format!("Debian {SUITE}: {versions}")},
            {"created": created, "created_by": format!("{PACKAGE} {VERSION}")},
        ],
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": document(&layout, CONFIG, &config)?,
        "layers": layers.iter().map(|layer| &layer.descriptor).collect::<Vec<_>>(),
    });
    let mut manifest = document(&layout, MANIFEST, &manifest)?;
    manifest["platform"] = json!({"architecture": arch.debian(), "os": "linux"});
    // containerd and docker take the name from the first annotation, podman and skopeo from the second.
    manifest["annotations"] =
        json!({"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "local"});
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]});
    tree::write(&layout.join("index.json"), index.to_string().as_bytes())?;
    tree::write(&layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let file = out.join(format!("{PACKAGE}-{VERSION}-{}.oci.tar", arch.name()));
    tarball::archive(&layout, &file, epoch)?;
    let root = work.join("checked");
    check(&file, &root)?;
    if arch.is_here() && setup::is_root() {
        starts(&root)?;
    }
    Ok(versions)
}

/// Returns the Debian packages of the image in the cache, where the newest are put if there are none. No
/// version is demanded: Debian's archive drops each when the next comes. Whoever makes the same image as
/// another puts the files with the versions and digests that the image names into the cache.
fn debs(arch: Arch) -> Result<Vec<PathBuf>> {
    let name = format!("image-{}", arch.name());
    let cached = paths::cache().join(&name);
    let have = || debs_in(&cached);
    archive::once(&name, TITLE, have, || {
        let new = cached.with_extension("new");
        archive::from_any(arch, SUITE, "image", TITLE, |apt| {
            let _ = fs::remove_dir_all(&new);
            fs::create_dir_all(&new).with_context(|| format!("cannot create {}", new.display()))?;
            for file in apt.download(&format!("{TITLE}: download"), &PACKAGES.map(str::to_owned))? {
                let to = new.join(file.file_name().unwrap_or_default());
                fs::copy(&file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
            }
            Ok(())
        })?;
        let _ = fs::remove_dir_all(&cached);
        fs::rename(&new, &cached).with_context(|| format!("cannot rename {}", new.display()))?;
        have().context("the packages of the image were fetched and are not there")
    })
}

/// Returns the packages in a directory, sorted by name; `None` without any.
fn debs_in(dir: &Path) -> Option<Vec<PathBuf>> {
    let mut files = tree::files(dir).ok()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "deb"));
    (!files.is_empty()).then_some(files)
}

/// Returns name, version and SHA-256 of each package, with which anybody finds the same ones; an error if
/// they are not those of the image.
fn described(debs: &[PathBuf], arch: Arch) -> Result<String> {
    let mut names = Vec::new();
    let mut all = Vec::new();
    for file in debs {
        let field = |name: &str| {
            let said = said_by(Command::new("dpkg-deb").arg("--field").arg(file).arg(name))?;
            Ok::<_, anyhow::Error>(String::from_utf8_lossy(&said).trim().to_owned())
        };
        let name = field("Package")?;
        all.push(format!("{name} {} {}", field("Version")?, digest(file)?));
        names.push((name, field("Architecture")?));
    }
    let wanted = PACKAGES.map(|name| (name.to_owned(), arch.debian().to_owned()));
    ensure!(
        names == wanted,
        "the image is made of one package {} each for {}, and the cache has {}: remove what is too much, or all \
         of them, and the newest are fetched",
        PACKAGES.join(" and "),
        arch.debian(),
        debs.iter()
            .map(|file| file.display().to_string())
            .collect::<Vec<_>>()
            .join(" ")
    );
    Ok(all.join(", "))
}

/// Unpacks glibc and busybox, and returns the tree.
fn base(debs: &[PathBuf], work: &Path) -> Result<PathBuf> {
    let root = work.join("base");
    archive::unpack(TITLE, debs, &root)?;
    // Removes character sets, which nothing here converts, and documents except the licences.
    let mut thin = Command::new("sh");
    thin.args(["-ec", THIN]).current_dir(&root);
    said_by(&mut thin)?;
    for name in BUSYBOX {
        let link = root.join("usr/bin").join(name);
        symlink("busybox", &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    tree::write(&root.join("etc/passwd"), b"root:x:0:0:root:/root:/bin/sh\n")?;
    tree::write(&root.join("etc/group"), b"root:x:0:\n")?;
    for dir in ["dev", "proc", "root", "run", "sys"] {
        fs::create_dir_all(root.join(dir)).with_context(|| format!("cannot create {dir}"))?;
    }
    Ok(root)
}

/// Removes from two packages what the image does not need, and makes /bin and /lib links as Debian has them.
const THIN: &str = r"
rm -rf usr/lib/*/gconv usr/lib/*/audit usr/share/lintian usr/share/man usr/share/initramfs-tools etc/initramfs-tools
find usr/share/doc -type f ! -name copyright -delete
find usr/share -type d -empty -delete
for dir in bin lib lib64 sbin; do
    if [ -d $dir ] && [ ! -L $dir ]; then
        mkdir -p usr/$dir
        cp -a $dir/. usr/$dir/
        rm -r $dir
    fi
    [ -L $dir ] || [ ! -d usr/$dir ] || ln -s usr/$dir $dir
done
[ -d usr/bin ]
";

/// Copies rdmatop and its licences into a tree of their own.
fn own(prefix: &Path, work: &Path) -> Result<PathBuf> {
    let root = work.join("own");
    let doc = format!("share/doc/{PACKAGE}");
    for (from, to) in [("bin", "usr/bin"), (&*doc, &*format!("usr/{doc}"))] {
        let to = root.join(to);
        fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
        said_by(
            Command::new("cp")
                .args(["--recursive", "--no-target-directory"])
                .arg(prefix.join(from))
                .arg(&to),
        )?;
    }
    Ok(root)
}

/// A layer of the image.
struct Layer {
    descriptor: Value,
    /// The digest of the uncompressed tar file.
    unpacked: String,
}

fn layer(root: &Path, layout: &Path, epoch: u64) -> Result<Layer> {
    let file = root.with_extension("tar");
    tarball::archive(root, &file, epoch)?;
    let unpacked = digest(&file)?;
    tree::compress(&file)?;
    let descriptor = blob(layout, LAYER, &file.with_extension("tar.gz"))?;
    Ok(Layer { descriptor, unpacked })
}

/// Writes a JSON document as a blob of the layout, and returns its descriptor.
fn document(layout: &Path, kind: &str, value: &Value) -> Result<Value> {
    let file = layout.with_extension("json");
    tree::write(&file, value.to_string().as_bytes())?;
    blob(layout, kind, &file)
}

/// Moves a file into the layout and returns its descriptor.
fn blob(layout: &Path, kind: &str, file: &Path) -> Result<Value> {
    let (digest, size) = (digest(file)?, fs::metadata(file)?.len());
    fs::rename(file, place(layout, &digest)?).with_context(|| format!("cannot rename {}", file.display()))?;
    Ok(json!({"mediaType": kind, "digest": digest, "size": size}))
}

/// Returns the path of the blob with this digest.
fn place(layout: &Path, digest: &str) -> Result<PathBuf> {
    let hash = digest
        .strip_prefix("sha256:")
        .context("a digest that is no SHA-256")?;
    Ok(layout.join("blobs/sha256").join(hash))
}

fn digest(file: &Path) -> Result<String> {
    let said = said_by(Command::new("sha256sum").arg("--binary").arg(file))?;
    let said = String::from_utf8_lossy(&said);
    let hash = said.split_whitespace().next().context("sha256sum says nothing")?;
    Ok(format!("sha256:{}", hash.trim_start_matches('\\')))
}

/// Reads an image as a container runtime does, compares each size and digest with the blob, and unpacks the
/// layers into `root`.
fn check(file: &Path, root: &Path) -> Result<()> {
    let layout = root.with_extension("layout");
    for dir in [&layout, root] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    unpack(file, &layout)?;
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let manifest: Value = serde_json::from_slice(&fs::read(held(&layout, &index["manifests"][0])?)?)?;
    let config: Value = serde_json::from_slice(&fs::read(held(&layout, &manifest["config"])?)?)?;
    let layers = manifest["layers"]
        .as_array()
        .context("a manifest without layers")?;
    let diff_ids = config["rootfs"]["diff_ids"]
        .as_array()
        .context("a configuration without layers")?;
    ensure!(
        layers.len() == diff_ids.len() && !layers.is_empty(),
        "the configuration has other layers"
    );
    for (layer, wanted) in layers.iter().zip(diff_ids) {
        let blob = held(&layout, layer)?;
        let tar = root.with_extension("layer.tar");
        fs::write(
            &tar,
            said_by(Command::new("gzip").args(["--decompress", "--stdout"]).arg(&blob))?,
        )?;
        ensure!(
            digest(&tar)? == *wanted,
            "{} unpacks to another digest",
            blob.display()
        );
        unpack(&tar, root)?;
    }
    Ok(())
}

/// Returns the blob of a descriptor after checking its size and digest.
fn held(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let wanted = descriptor["digest"]
        .as_str()
        .context("a descriptor without a digest")?;
    let file = place(layout, wanted)?;
    let size = fs::metadata(&file)
        .with_context(|| format!("no blob {wanted}"))?
        .len();
    ensure!(
        descriptor["size"] == size && digest(&file)? == wanted,
        "{wanted} is another file"
    );
    Ok(file)
}

fn unpack(file: &Path, dir: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", "--file"])
        .arg(file)
        .arg("--directory")
        .arg(dir);
    said_by(&mut tar).map(drop)
}

/// Runs the image's programs in its root directory.
fn starts(root: &Path) -> Result<()> {
    let script = "rdmatop --version; rdmatop doctor --json >/run/doctor || [ $? -le 3 ]; \
                  busybox timeout 1 sleep infinity || [ $? = 143 ]";
    let mut chroot = Command::new("chroot");
    chroot
        .arg(root)
        .args(["/bin/sh", "-ec", script])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin");
    let said = said_by(&mut chroot)?;
    let wanted = format!("rdmatop {VERSION}");
    ensure!(
        said.starts_with(wanted.as_bytes()),
        "the image's rdmatop said {:?}",
        String::from_utf8_lossy(&said)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an empty Debian package.
    fn deb(dir: &Path, name: &str, version: &str, arch: &str) {
        let root = dir.join(format!("{name}.d"));
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: a <a@b>\nDescription: a\n"
        );
        tree::write(&root.join("DEBIAN/control"), control.as_bytes()).unwrap();
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "--build"]).arg(&root);
        said_by(build.arg(dir.join(format!("{name}_{version}_{arch}.deb")))).unwrap();
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn packages_of_an_image_are_told_with_digests_and_no_others_are_taken() {
        let dir = std::env::temp_dir().join(format!("xtask-oci-debs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(debs_in(&dir), None);
        deb(&dir, "libc6", "2.41-1", "amd64");
        let told = || described(&debs_in(&dir).unwrap(), Arch::X86_64);
        assert!(told().is_err(), "one is missing");
        deb(&dir, "busybox-static", "1.37.0-6", "amd64");
        let debs = debs_in(&dir).unwrap();
        let [busybox, libc] = &debs[..] else {
            panic!("{debs:?}")
        };
        assert_eq!(
            told().unwrap(),
            format!(
                "busybox-static 1.37.0-6 {}, libc6 2.41-1 {}",
                digest(busybox).unwrap(),
                digest(libc).unwrap()
            )
        );
        let other = described(&debs, Arch::Aarch64).unwrap_err().to_string();
        assert!(other.contains("each for arm64"), "{other}");
        deb(&dir, "libc6", "2.41-2", "amd64");
        let twice = told().unwrap_err().to_string();
        assert!(twice.contains("libc6_2.41-2_amd64.deb"), "{twice}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_image_is_what_its_digests_say_and_a_changed_one_is_refused() {
        let dir = std::env::temp_dir().join(format!("xtask-oci-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let layout = dir.join("layout");
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        tree::write(&dir.join("own/usr/bin/one"), b"one").unwrap();
        let layer = layer(&dir.join("own"), &layout, 1_700_000_000).unwrap();
        let pack = |layers: Value, diff_ids: Value| {
            let config = document(&layout, CONFIG, &json!({"rootfs": {"diff_ids": diff_ids}})).unwrap();
            let manifest = json!({"config": config, "layers": layers});
            let index = json!({"manifests": [document(&layout, MANIFEST, &manifest).unwrap()]});
            tree::write(&layout.join("index.json"), index.to_string().as_bytes()).unwrap();
            tarball::archive(&layout, &dir.join("image.tar"), 1_700_000_000).unwrap();
            check(&dir.join("image.tar"), &dir.join("root"))
        };
        pack(json!([layer.descriptor]), json!([layer.unpacked])).unwrap();
        assert_eq!(fs::read(dir.join("root/usr/bin/one")).unwrap(), b"one");
        let compressed = layer.descriptor["digest"].clone();
        assert!(
            pack(json!([layer.descriptor]), json!([compressed])).is_err(),
            "not the tar's digest"
        );
        assert!(pack(json!([]), json!([])).is_err());
        let mut longer = layer.descriptor.clone();
        longer["size"] = 1.into();
        assert!(
            pack(json!([longer]), json!([layer.unpacked])).is_err(),
            "not its size"
        );
        let blob = place(&layout, compressed.as_str().unwrap()).unwrap();
        let mut bytes = fs::read(&blob).unwrap();
        bytes[5] ^= 1;
        fs::write(&blob, bytes).unwrap();
        let refused = pack(json!([layer.descriptor]), json!([layer.unpacked])).unwrap_err();
        assert!(refused.to_string().contains("is another file"), "{refused}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
