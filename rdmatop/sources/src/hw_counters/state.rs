//! What rdmatop changed in the counters of ports, in the form of the file that outlives a SIGKILL.

use serde::{Deserialize, Serialize};

use rdmatop_base::text;

/// Form of the file.
const VERSION: u32 = 1;
/// A node has 1 to 16 ports; one with virtual functions some hundred.
const MOST: usize = 4096;
/// More optional counters than any driver has.
const MOST_OPTIONAL: usize = 1024;
/// A device's name has 63 bytes, each of which may have become an escape.
const LONGEST: usize = 512;

/// A port on which rdmatop switched the binding of QPs on, or was about to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// Name of the device, safe to print. Anybody may have renamed it since.
    pub device: String,
    /// Device index. A renaming keeps it; the numbers start again when ib_core is loaded again.
    pub index: u32,
    /// Node GUID.
    pub node_guid: Option<u64>,
    /// Inode of its directory in sysfs. The kernel gives a number once per boot, and a renaming keeps it.
    pub inode: Option<u64>,
    /// Port number.
    pub port: u32,
    /// Whether QPs are bound to the optional counters too.
    pub bind_optional: bool,
    /// Indexes of the optional counters that were on before and after the change; `None` if none was changed.
    pub optional: Option<[Vec<u32>; 2]>,
}

/// What `--hw-counters` has changed and has to take back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    version: u32,
    /// The boot in which the changes were made (/proc/sys/kernel/random/boot_id): no change outlives it.
    pub boot: String,
    /// The ports.
    pub ports: Vec<Changed>,
}

impl Changes {
    /// A list with no change yet.
    pub fn new(boot: &str) -> Self {
        Self {
            version: VERSION,
            boot: boot.to_owned(),
            ports: Vec::new(),
        }
    }

    /// Parses the file. `Err`: why rdmatop cannot have written it, in one line that is safe to print.
    pub fn parse(raw: &[u8]) -> Result<Self, String> {
        let changes: Self =
            serde_json::from_slice(raw).map_err(|error| text::sanitize(error.to_string().as_bytes()))?;
        if changes.version != VERSION {
            return Err(format!("it has version {} and not {VERSION}", changes.version));
        }
        let many = |changed: &Changed| {
            let lists = changed.optional.iter().flatten();
            lists.map(Vec::len).any(|length| length > MOST_OPTIONAL)
        };
        if changes.ports.len() > MOST || changes.ports.iter().any(many) {
            return Err("it lists more than there can be".to_owned());
        }
        let names = changes.ports.iter().map(|changed| &changed.device);
        let printable = |word: &String| word.len() <= LONGEST && text::sanitize(word.as_bytes()) == *word;
        if !names.chain([&changes.boot]).all(printable) {
            return Err("it has names that rdmatop does not write".to_owned());
        }
        Ok(changes)
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mut changes = Changes::new("b1");
        changes.ports.push(Changed {
            device: "mlx5_0".to_owned(),
            index: 3,
            node_guid: Some(u64::MAX),
            inode: Some(77),
            port: 1,
            bind_optional: true,
            optional: Some([vec![40], vec![40, 44]]),
        });
        assert_eq!(Changes::parse(&changes.bytes()), Ok(changes.clone()));
        let text = String::from_utf8(changes.bytes()).unwrap();
        for broken in [
            text.replace("\"version\": 1", "\"version\": 2"),
            text.replace("mlx5_0", "mlx5\\u001b[2J"),
            text.replace("\"port\"", "\"ports\""),
            text.replace('}', ""),
            text.replace("mlx5_0", &"x".repeat(LONGEST + 1)),
        ] {
            assert!(Changes::parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
