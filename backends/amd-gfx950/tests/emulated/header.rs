//! Our prototypes and layouts against the public HIP 7 header, which ships with the kernel compiler.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tokenspeed_amd_gfx950::hip::{self, PROTOTYPES, properties};

use crate::support::target;

/// The interpreter of the kernels' environment, if `cargo xtask` made one.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("TOKENSPEED_KERNELS_PYTHON").map(PathBuf::from);
    if python.is_none() {
        eprintln!("not run: TOKENSPEED_KERNELS_PYTHON is not set; `cargo xtask test` sets it");
    }
    python
}

fn headers(python: &Path) -> PathBuf {
    let lib = python.parent().unwrap().parent().unwrap().join("lib");
    let version = std::fs::read_dir(lib).unwrap().find_map(|e| {
        let path = e.unwrap().path();
        path.file_name()?.to_str()?.starts_with("python3").then_some(path)
    });
    version.unwrap().join("site-packages/triton/backends/amd/include")
}

/// The C type of a Rust parameter type.
fn c_type(rust: &str) -> String {
    if let Some(rest) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(rest));
    }
    if let Some(rest) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(rest));
    }
    match rust {
        "i32" => "int",
        "u32" => "unsigned int",
        "u64" => "unsigned long long",
        "usize" => "size_t",
        "c_void" => "void",
        "c_char" => "char",
        "HipStream" => "hipStream_t",
        "HipEvent" => "hipEvent_t",
        "HipModule" => "hipModule_t",
        "HipFunction" => "hipFunction_t",
        "HipGraph" => "hipGraph_t",
        "HipGraphExec" => "hipGraphExec_t",
        "HipGraphNode" => "hipGraphNode_t",
        "MemcpyKind" => "hipMemcpyKind",
        "CaptureMode" => "hipStreamCaptureMode",
        "DeviceProperties" => "hipDeviceProp_tR0600",
        other => panic!("no C type for {other}"),
    }
    .into()
}

/// Compiles static assertions; returns what the compiler says.
fn compile(name: &str, include: &Path, body: &str) -> Result<(), String> {
    let file = target().join(format!("hip-{name}-{}.c", std::process::id()));
    let text = format!("#define __HIP_PLATFORM_AMD__ 1\n#include <stddef.h>\n#include <hip/hip_runtime_api.h>\n{body}");
    std::fs::write(&file, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-w", "-fsyntax-only", "-Werror=incompatible-pointer-types", "-I"]).arg(include).arg(&file);
    let out = cc.output().expect("a C compiler named cc");
    std::fs::remove_file(&file).unwrap();
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

#[test]
fn prototypes_and_layouts_are_the_headers() {
    let Some(python) = python() else { return };
    let include = headers(&python);
    let mut body = String::new();
    for (name, parameters) in PROTOTYPES {
        let list: Vec<String> = parameters.iter().map(|p| c_type(p)).collect();
        let list = if list.is_empty() { "void".into() } else { list.join(", ") };
        let same = format!("__builtin_types_compatible_p(__typeof__(&{name}), hipError_t (*)({list}))");
        body += &format!("_Static_assert({same}, \"{name}\");\n");
    }
    body += &format!("_Static_assert(sizeof(hipDeviceProp_tR0600) == {}, \"size\");\n", properties::BYTES);
    for (member, offset) in [
        ("name", properties::NAME),
        ("totalGlobalMem", properties::TOTAL_GLOBAL_MEM),
        ("multiProcessorCount", properties::MULTI_PROCESSOR_COUNT),
        ("gcnArchName", properties::GCN_ARCH_NAME),
    ] {
        body += &format!("_Static_assert(offsetof(hipDeviceProp_tR0600, {member}) == {offset}, \"{member}\");\n");
    }
    let constants = [
        ("hipMemcpyHostToDevice", hip::HOST_TO_DEVICE),
        ("hipMemcpyDeviceToHost", hip::DEVICE_TO_HOST),
        ("hipMemcpyDeviceToDevice", hip::DEVICE_TO_DEVICE),
        ("hipStreamCaptureModeThreadLocal", hip::CAPTURE_THREAD_LOCAL),
        ("hipStreamNonBlocking", hip::STREAM_NON_BLOCKING),
        ("hipEventDisableTiming", hip::EVENT_DISABLE_TIMING),
        ("hipErrorNotReady", hip::NOT_READY as u32),
        ("hipErrorNoDevice", hip::NO_DEVICE as u32),
    ];
    for (name, value) in constants {
        body += &format!("_Static_assert({name} == {value}, \"{name}\");\n");
    }
    compile("table", &include, &body).unwrap();
    // The check itself notices a wrong type.
    let wrong = "_Static_assert(__builtin_types_compatible_p(__typeof__(&hipFree), hipError_t (*)(int)), \"hipFree\");";
    assert!(compile("wrong", &include, wrong).unwrap_err().contains("hipFree"));
}
