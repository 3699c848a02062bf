//! Extracts BTF from the boot image of a kernel.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Compression formats of a kernel image: the first bytes of the data, and the program that unpacks it.
const PACKED: [(&[u8], &[&str]); 4] = [
    (b"\xfd7zXZ\0", &["xz", "-dc"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dc"]),
    (b"\x1f\x8b\x08", &["gzip", "-dc"]),
    // The old frame format of lz4, which Debian's cloud kernels before 6.12 use.
    (b"\x02\x21\x4c\x18", &["lz4", "-dc"]),
];

/// The start of BTF: its magic, version and flags, and the length of its header (`struct btf_header`,
/// include/uapi/linux/btf.h).
const BTF: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
/// Minimum size: a kernel's own BTF is never smaller, but programs inside a kernel may have small BTF.
const LEAST: usize = 1 << 20;

/// Returns the kernel's own BTF from its boot image: that of the first part that contains BTF when unpacked.
pub(crate) fn btf(image: &[u8]) -> Option<Vec<u8>> {
    // An arm64 image may be uncompressed.
    if let Some(btf) = own_btf(image) {
        return Some(btf.to_owned());
    }
    for (magic, tool) in PACKED {
        let at = image.windows(magic.len()).enumerate();
        for (at, _) in at.filter(|(_, window)| *window == magic) {
            let kernel = piped(tool, &image[at..]);
            if let Some(btf) = kernel.as_deref().and_then(own_btf) {
                return Some(btf.to_owned());
            }
        }
    }
    None
}

/// Finds the kernel's own BTF in an uncompressed kernel, which need not be an ELF file.
fn own_btf(kernel: &[u8]) -> Option<&[u8]> {
    let starts = kernel.windows(BTF.len()).enumerate();
    let mut starts = starts.filter(|(_, window)| *window == BTF).map(|(at, _)| at);
    starts.find_map(|at| {
        let rest = &kernel[at..];
        let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?) as usize);
        let (types, types_len, strings, strings_len) = (word(8)?, word(12)?, word(16)?, word(20)?);
        let end = 24_usize.checked_add(strings)?.checked_add(strings_len)?;
        (types == 0 && strings >= types_len && end >= LEAST)
            .then(|| rest.get(..end))
            .flatten()
    })
}

/// Returns the output of a program for `data`. Data after the compressed part makes the program fail at the
/// end, which does not matter.
fn piped(tool: &[&str], data: &[u8]) -> Option<Vec<u8>> {
    let (program, arguments) = tool.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Writing fails when the program reads no more.
            let _ = stdin.write_all(data);
        });
        child.wait_with_output().ok().map(|output| output.stdout)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns BTF with this many bytes of strings.
    fn blob(strings: u32) -> Vec<u8> {
        let mut blob = BTF.to_vec();
        for word in [0, 8, 8, strings] {
            blob.extend(u32::to_le_bytes(word));
        }
        blob.resize(24 + 8 + strings as usize, 7);
        blob
    }

    #[test]
    fn a_kernel_is_found_in_its_image_behind_what_only_looks_like_one() {
        let packed = |data: &[u8]| piped(&["gzip", "-c"], data).unwrap();
        let own = blob(2 << 20);
        let kernel = [b"head".to_vec(), blob(64), own.clone(), b"tail".to_vec()].concat();
        let image = [
            b"MZ....\x1f\x8b\x08".as_slice(),
            &packed(b"no kernel"),
            &packed(&kernel),
            b"tail",
        ]
        .concat();
        assert!(btf(&image) == Some(own));
        assert!(btf(&packed(&kernel[..1 << 20])).is_none(), "cut off");
        assert_eq!(btf(b"nothing"), None);
    }
}
