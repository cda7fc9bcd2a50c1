//! Every function that both know takes as many arguments, of the same sizes; and the library that `hip-runtime-sys` was linked
//! with does what that crate's declarations say.

use std::{ffi::c_void, mem::size_of, path::PathBuf};

use tokenspeed_hip_check::hip;

/// Sizes of a function's result and arguments.
trait Shape {
    fn shape(self) -> Vec<usize>;
}

macro_rules! shapes {
    ($(($($t:ident)*))*) => {$(
        impl<Out, $($t),*> Shape for unsafe extern "C" fn($($t),*) -> Out {
            fn shape(self) -> Vec<usize> {
                vec![size_of::<Out>() $(, size_of::<$t>())*]
            }
        }
    )*};
}

shapes! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F G H I J K)
}

macro_rules! same {
    ($hip:ident; $($name:ident($($any:tt),*))*) => {{
        $({
            let theirs: unsafe extern "C" fn($($any),*) -> _ = hip_runtime_sys::$name;
            assert_eq!($hip.$name.shape(), theirs.shape(), stringify!($name));
        })*
        [$(stringify!($name)),*]
    }};
}

fn library() -> PathBuf {
    let root = std::env::var_os("HIP_PATH").map_or_else(|| "/opt/rocm".into(), PathBuf::from);
    root.join("lib/libamdhip64.so")
}

#[test]
fn arguments_have_the_same_sizes() {
    let hip = hip::load_from(&[library()]).unwrap_or_else(|e| panic!("{e}"));
    let compared = same!(hip;
        hipRuntimeGetVersion(_) hipGetDeviceCount(_) hipSetDevice(_) hipDeviceSynchronize() hipMalloc(_, _) hipFree(_)
        hipMemGetInfo(_, _) hipHostMalloc(_, _, _) hipHostFree(_) hipMemcpy(_, _, _, _) hipMemcpyAsync(_, _, _, _, _)
        hipStreamCreateWithFlags(_, _) hipStreamDestroy(_) hipStreamSynchronize(_) hipStreamWaitEvent(_, _, _)
        hipEventCreateWithFlags(_, _) hipEventDestroy(_) hipEventRecord(_, _) hipEventSynchronize(_) hipEventQuery(_)
        hipModuleLoadData(_, _) hipModuleUnload(_) hipModuleGetFunction(_, _, _)
        hipModuleLaunchKernel(_, _, _, _, _, _, _, _, _, _, _) hipStreamBeginCapture(_, _) hipStreamEndCapture(_, _)
        hipGraphInstantiateWithFlags(_, _, _) hipGraphLaunch(_, _) hipGraphExecDestroy(_) hipGraphDestroy(_)
        hipGraphGetNodes(_, _, _));
    // Newer than the crate, whose declarations are of HIP 5.
    let newer = "hipGetDevicePropertiesR0600";
    for (name, _) in hip::PROTOTYPES {
        assert!(compared.contains(name) || *name == newer, "{name} is not compared");
    }
}

#[test]
fn memory_goes_there_and_back() {
    use hip_runtime_sys::*;
    let (mut count, mut device) = (0, std::ptr::null_mut::<c_void>());
    let (from, mut to) = ([1u32, 2, 3, 4], [0u32; 4]);
    // SAFETY: declared types; sizes are those of the arrays.
    unsafe {
        assert_eq!(hipGetDeviceCount(&mut count), hipError_t::hipSuccess);
        assert!(count > 0);
        assert_eq!(hipMalloc(&mut device, 16), hipError_t::hipSuccess);
        let done = hipMemcpy(device, from.as_ptr().cast(), 16, hipMemcpyKind::hipMemcpyHostToDevice);
        assert_eq!(done, hipError_t::hipSuccess);
        let done = hipMemcpy(to.as_mut_ptr().cast(), device, 16, hipMemcpyKind::hipMemcpyDeviceToHost);
        assert_eq!(done, hipError_t::hipSuccess);
        assert_eq!(hipFree(device), hipError_t::hipSuccess);
    }
    assert_eq!(from, to);
}
