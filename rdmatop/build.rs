//! Embeds the eBPF object when there is one.
fn main() {
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    println!("cargo::rerun-if-env-changed=RDMATOP_EBPF_OBJECT");
    if let Ok(path) = std::env::var("RDMATOP_EBPF_OBJECT") {
        println!("cargo::rerun-if-changed={path}");
        println!("cargo::rustc-env=RDMATOP_EBPF_OBJECT={path}");
        println!("cargo::rustc-cfg=ebpf_object");
    }
}
