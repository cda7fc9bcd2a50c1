//! The `struct_size` rule: every struct passed by pointer says how long its owner believes it is.
//!
//! Both sides read and write min(own, other's) bytes; what is missing reads as zero, which always means the documented
//! default. Having the rule in two functions, used by the loader, the wrapper and the SDK alike, is what makes an old
//! plugin safe with a new host and the reverse. Rejected: one function table version per struct (a caller would have
//! to know the callee's version of every struct).

use crate::abi::*;
use core::mem::{MaybeUninit, size_of};

/// A struct of the C table that starts with `struct_size`.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `u32` named `struct_size`, and all-zero bytes are a valid value.
pub unsafe trait AbiStruct: Copy {
    /// The C name, for messages.
    const NAME: &'static str;
}

macro_rules! abi_structs {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: repr(C), begins with `struct_size: u32`, and holds integers, pointers and Option<fn> only.
        unsafe impl AbiStruct for $name {
            const NAME: &'static str = stringify!($name);
        }
    )*};
}
abi_structs!(
    ts_error,
    ts_host,
    ts_backend_info,
    ts_device_info,
    ts_op,
    ts_support,
    ts_bucket,
    ts_program_desc,
    ts_run,
    ts_load,
    ts_step,
    ts_group_desc,
    ts_backend_table,
);

/// A value with every field zero and `struct_size` filled in.
pub fn zeroed<T: AbiStruct>() -> T {
    // SAFETY: `AbiStruct` promises that zero bytes are valid and that the first field is the u32 size.
    unsafe {
        let mut value = MaybeUninit::<T>::zeroed();
        value.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32);
        value.assume_init()
    }
}

/// Reads min(its, our) bytes of `*source`; the missing tail is zero. `None` if null or impossibly short.
///
/// # Safety
/// `source` is null or points to at least as many readable, aligned bytes as its `struct_size` says.
pub unsafe fn read<T: AbiStruct>(source: *const T) -> Option<T> {
    if source.is_null() {
        return None;
    }
    // SAFETY: the caller says that the struct is readable for `struct_size` bytes, at least its first field.
    unsafe {
        let size = source.cast::<u32>().read() as usize;
        if size < size_of::<u32>() {
            return None;
        }
        let mut value = zeroed::<T>();
        source.cast::<u8>().copy_to_nonoverlapping((&raw mut value).cast(), size.min(size_of::<T>()));
        Some(value)
    }
}

/// Writes min(its, our) bytes of `value` to `*destination` and sets `struct_size` to the bytes written. Returns
/// whether anything could be written.
///
/// # Safety
/// `destination` is null or points to as many writable, aligned bytes as its `struct_size` says.
pub unsafe fn write<T: AbiStruct>(destination: *mut T, value: &T) -> bool {
    if destination.is_null() {
        return false;
    }
    // SAFETY: as promised by the caller, writable for `struct_size` bytes.
    unsafe {
        let size = (destination.cast::<u32>().read() as usize).min(size_of::<T>());
        if size < size_of::<u32>() {
            return false;
        }
        core::ptr::from_ref(value).cast::<u8>().copy_to_nonoverlapping(destination.cast(), size);
        destination.cast::<u32>().write(size as u32);
        true
    }
}

/// Borrowed text of a [`ts_str`]; `None` if it is not UTF-8. Null is the empty string.
///
/// # Safety
/// `s` points to `len` readable bytes that live for `'a`, or is null.
pub unsafe fn str_from<'a>(s: ts_str) -> Option<&'a str> {
    if s.data.is_null() || s.len == 0 {
        return Some("");
    }
    // SAFETY: promised by the caller.
    core::str::from_utf8(unsafe { core::slice::from_raw_parts(s.data.cast(), s.len) }).ok()
}

/// A [`ts_str`] that borrows `s`.
pub fn str_to(s: &str) -> ts_str {
    ts_str { data: s.as_ptr().cast(), len: s.len() }
}

/// The text in a fixed zero-terminated field, made printable on one line.
pub fn text_from(field: &[core::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    one_line(&String::from_utf8_lossy(&bytes))
}

/// Copies `text` into a fixed field, cut at a character boundary and zero-terminated.
pub fn text_to(field: &mut [core::ffi::c_char], text: &str) {
    let Some(room) = field.len().checked_sub(1) else { return };
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in field.iter_mut().zip(text.as_bytes()[..end].iter().chain(std::iter::once(&0))) {
        *to = *from as core::ffi::c_char;
    }
}

/// Messages of plugins are printed as one line: control characters become spaces, runs of spaces become one.
pub fn one_line(text: &str) -> String {
    let spaced: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_struct_reads_with_zero_tail() {
        let mut load: ts_load = zeroed();
        (load.n_tokens, load.attention_pairs) = (7, 99);
        load.struct_size = 8;
        // SAFETY: a whole ts_load is behind the pointer.
        let got = unsafe { read(&raw const load) }.unwrap();
        assert_eq!((got.n_tokens, got.attention_pairs), (7, 0));
        assert_eq!(got.struct_size, 8);
    }

    #[test]
    fn write_never_passes_the_callers_end() {
        let mut load: ts_load = zeroed();
        load.struct_size = 8;
        let mut full: ts_load = zeroed();
        (full.n_tokens, full.n_rows) = (5, 6);
        // SAFETY: as above.
        assert!(unsafe { write(&raw mut load, &full) });
        assert_eq!((load.struct_size, load.n_tokens, load.n_rows), (8, 5, 0));
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let mut field = [1; 5];
        text_to(&mut field, "abcé");
        assert_eq!(text_from(&field), "abc");
        assert_eq!(one_line("a\n  b\tc\0"), "a b c");
    }
}
