//! Links the program where QEMU loads it and without an operating system's help.

fn main() {
    // The library's tests run on the host, where none of this applies.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        let script = format!("{}/src/arch/{arch}/guest.ld", env!("CARGO_MANIFEST_DIR"));
        println!("cargo::rustc-link-arg-bins=-T{script}");
        // It is loaded where it was linked to, so nothing is to be relocated.
        println!("cargo::rustc-link-arg-bins=--no-pie");
        println!("cargo::rerun-if-changed={script}");
    }
    println!("cargo::rerun-if-changed=src/arch");
}
