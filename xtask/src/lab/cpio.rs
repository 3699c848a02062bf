//! Writes a cpio archive in the "newc" format, which the kernel unpacks as initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// An archive being written.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHAR_DEVICE: u32 = 0o020_000;

impl Archive {
    /// Adds a directory.
    pub(crate) fn dir(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, &[], (0, 0));
    }

    /// Adds a regular file with permission bits `mode`.
    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, REGULAR | mode, data, (0, 0));
    }

    /// Adds a character device node.
    pub(crate) fn char_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHAR_DEVICE | 0o600, &[], (major, minor));
    }

    /// Ends the archive and returns its bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8], rdev: (u32, u32)) {
        self.inode += 1;
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [
            self.inode, mode, 0, 0, 1, 0, size, 0, 0, rdev.0, rdev.1, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_trailer_ends_the_archive() {
        let mut archive = Archive::default();
        archive.dir("bin");
        archive.file("bin/init", 0o755, b"#!/x\n");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
        // The header has 110 bytes and "bin\0" ends at 114; padded to 116, where the next header starts.
        assert_eq!(&bytes[116..122], b"070701");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("TRAILER!!!"));
        assert_eq!(text.matches("070701").count(), 3);
    }

    #[test]
    fn a_file_header_carries_mode_and_size() {
        let mut archive = Archive::default();
        archive.file("a", 0o755, b"12345");
        let bytes = archive.finish();
        assert_eq!(&bytes[14..22], b"000081ed");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[112..117], b"12345");
    }
}
