//! Capabilities that decide what rdmatop can show (capabilities(7)).

/// The ones that matter here, with their bit in include/uapi/linux/capability.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Look into processes of other users.
    SysPtrace = 19,
    /// What `Perfmon` and `Bpf` allow, and descriptors of module BTF.
    SysAdmin = 21,
    /// Raise the memlock limit.
    SysResource = 24,
    /// Attach to kernel functions.
    Perfmon = 38,
    /// Load eBPF.
    Bpf = 39,
}

impl Capability {
    /// All capabilities, by bit.
    pub const ALL: [Self; 5] = [
        Self::SysPtrace,
        Self::SysAdmin,
        Self::SysResource,
        Self::Perfmon,
        Self::Bpf,
    ];

    /// The name as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// A set of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Takes the capabilities from a mask of `/proc/PID/status`.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether it is in the set.
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> (capability as u8) & 1 == 1
    }

    /// `CAP_BPF`, or the older right that includes it.
    pub fn may_load_bpf(self) -> bool {
        self.has(Capability::Bpf) || self.has(Capability::SysAdmin)
    }

    /// `CAP_PERFMON`, or the older right that includes it.
    pub fn may_trace(self) -> bool {
        self.has(Capability::Perfmon) || self.has(Capability::SysAdmin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_kernel_header() {
        let got = |bits: u64| {
            let caps = Capabilities::from_bits(bits);
            Capability::ALL
                .into_iter()
                .filter(|c| caps.has(*c))
                .map(Capability::name)
                .collect::<Vec<_>>()
        };
        assert_eq!(got(0x0000_00c0_0000_0000), ["CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(
            got(0x0000_0004_0128_1000),
            ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"]
        );
        assert!(got(0).is_empty());
    }

    #[test]
    fn the_administrator_right_includes_bpf_and_tracing() {
        let admin = Capabilities::from_bits(1 << 21);
        assert!(admin.may_load_bpf() && admin.may_trace() && !admin.has(Capability::Bpf));
        let bpf = Capabilities::from_bits(1 << 39);
        assert!(bpf.may_load_bpf() && !bpf.may_trace());
    }
}
