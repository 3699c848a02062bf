//! Which package brings rdma_rxe and the modules of NVMe over RDMA, by distribution. Says what is known, and
//! that the rest is not.

use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_sources::platform::os_release;

/// How to get a module for `kernel` (as `uname -r` says it) on the system of this /etc/os-release.
pub(super) fn advice(release: &[u8], kernel: &str, module: &str) -> NextStep {
    let [id, like] = ["ID", "ID_LIKE"].map(|key| os_release(release, key).unwrap_or_default());
    let descends_from = |name: &str| id == name || like.split_whitespace().any(|like| like == name);
    let arch = kernel.rsplit('-').next().unwrap_or_default();
    let of = |version| ShellWord::new(version, "VERSION");
    let rxe = module == "rdma_rxe";
    if id == "amzn" && rxe {
        return "no package of Amazon Linux is known to bring it; use a kernel with CONFIG_RDMA_RXE".into();
    }
    if descends_from("ubuntu") {
        return step!("`sudo apt install linux-modules-extra-{}` brings it", of(kernel));
    }
    if descends_from("debian") {
        return if rxe && kernel.contains("-cloud-") {
            step!(
                "Debian's cloud kernel is built without it; `sudo apt install linux-image-{}` and reboot into that one",
                of(arch)
            )
        } else {
            step!(
                "Debian's own kernels have it; `sudo apt install --reinstall linux-image-{}`, if this is one",
                of(kernel)
            )
        };
    }
    if rxe && (descends_from("rhel") || descends_from("fedora")) {
        return step!(
            "if this distribution builds it, `sudo dnf install kernel-modules-extra-{}` brings it (RHEL 8 has it as a technology preview; not checked on others)",
            of(kernel)
        );
    }
    let option = if rxe {
        "CONFIG_RDMA_RXE"
    } else {
        "CONFIG_NVME_RDMA and CONFIG_NVME_TARGET_RDMA"
    };
    step!(
        "which package brings it is not known here; use a kernel with {}",
        option
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advise(release: &str, kernel: &str) -> NextStep {
        advice(release.as_bytes(), kernel, "rdma_rxe")
    }

    #[test]
    fn ubuntu_is_told_the_package_of_the_running_kernel() {
        let advice = advise("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n", "6.14.0-1015-aws");
        assert_eq!(
            advice,
            "`sudo apt install linux-modules-extra-6.14.0-1015-aws` brings it"
        );
    }

    #[test]
    fn a_descendant_of_ubuntu_is_told_the_same() {
        assert!(
            advise("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "6.8.0-1")
                .contains("linux-modules-extra-6.8.0-1")
        );
    }

    #[test]
    fn debian_cloud_is_told_the_generic_kernel_of_its_architecture() {
        let advice = advise("ID=debian\n", "6.1.0-44-cloud-arm64");
        assert!(
            advice.contains("`sudo apt install linux-image-arm64` and reboot"),
            "{advice}"
        );
    }

    #[test]
    fn debian_generic_is_not_told_of_the_cloud() {
        let advice = advise("ID=debian\n", "6.12.107+deb13-amd64");
        assert!(
            !advice.contains("cloud") && advice.contains("linux-image-6.12.107+deb13-amd64"),
            "{advice}"
        );
    }

    #[test]
    fn amazon_linux_is_told_that_nothing_is_known() {
        let advice = advise(
            "ID=\"amzn\"\nID_LIKE=\"centos rhel fedora\"\n",
            "6.1.79-99.164.amzn2023.x86_64",
        );
        assert!(advice.contains("no package of Amazon Linux is known"), "{advice}");
    }

    #[test]
    fn of_an_unknown_system_no_package_is_claimed() {
        for file in ["ID=x\nPRETTY_NAME=\"My OS\"\n", "garbage"] {
            assert!(advise(file, "1.2").starts_with("which package brings it is not known here"));
        }
    }

    proptest::proptest! {
        #[test]
        fn advice_is_one_line_that_is_safe_to_print(id in "[a-z]{0,6}", like: Vec<u8>, kernel in "[ -~]{0,20}") {
            let mut file = format!("ID={id}\nID_LIKE=").into_bytes();
            file.extend(like);
            let advice = advice(&file, &kernel, "rdma_rxe");
            proptest::prop_assert_eq!(rdmatop_base::text::sanitize(advice.as_bytes()), &*advice);
        }
    }
}
