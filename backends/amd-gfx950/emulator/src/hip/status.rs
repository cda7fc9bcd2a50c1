//! Status codes of the HIP API, by their numbers in the public header.

/// A status; 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($name:ident $number:literal $text:literal $words:literal;)*) => {
        impl Status {
            $(#[doc = $words] pub const $name: Self = Self($number);)*

            /// The header's name and a description, zero-terminated.
            pub fn words(self) -> (&'static str, &'static str) {
                match self.0 {
                    $($number => (concat!($text, "\0"), concat!($words, "\0")),)*
                    _ => ("hipErrorUnknown\0", "unknown error\0"),
                }
            }

            /// All statuses with their names.
            pub const ALL: &[(i32, &str)] = &[$(($number, $text)),*];
        }
    };
}

statuses! {
    SUCCESS 0 "hipSuccess" "no error";
    INVALID_VALUE 1 "hipErrorInvalidValue" "invalid argument";
    OUT_OF_MEMORY 2 "hipErrorOutOfMemory" "out of memory";
    INVALID_CONFIGURATION 9 "hipErrorInvalidConfiguration" "invalid configuration argument";
    NO_DEVICE 100 "hipErrorNoDevice" "no ROCm-capable device is detected";
    INVALID_DEVICE 101 "hipErrorInvalidDevice" "invalid device ordinal";
    INVALID_IMAGE 200 "hipErrorInvalidImage" "device kernel image is invalid";
    FILE_NOT_FOUND 301 "hipErrorFileNotFound" "file not found";
    INVALID_HANDLE 400 "hipErrorInvalidHandle" "invalid resource handle";
    NOT_FOUND 500 "hipErrorNotFound" "named symbol not found";
    NOT_READY 600 "hipErrorNotReady" "device not ready";
    ILLEGAL_ADDRESS 700 "hipErrorIllegalAddress" "an illegal memory access was encountered";
    PEER_ALREADY_ENABLED 704 "hipErrorPeerAccessAlreadyEnabled" "peer access is already enabled";
    PEER_NOT_ENABLED 705 "hipErrorPeerAccessNotEnabled" "peer access has not been enabled";
    LAUNCH_FAILURE 719 "hipErrorLaunchFailure" "unspecified launch failure";
    COOPERATIVE_TOO_LARGE 720 "hipErrorCooperativeLaunchTooLarge" "too many blocks in cooperative launch";
    NOT_SUPPORTED 801 "hipErrorNotSupported" "operation not supported";
    CAPTURE_UNSUPPORTED 900 "hipErrorStreamCaptureUnsupported" "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED 901 "hipErrorStreamCaptureInvalidated" "operation failed due to a previous error during capture";
    CAPTURE_UNMATCHED 903 "hipErrorStreamCaptureUnmatched" "stream capture unmatched";
    CAPTURE_UNJOINED 904 "hipErrorStreamCaptureUnjoined" "capturing stream has unjoined work";
    CAPTURE_WRONG_THREAD 908 "hipErrorStreamCaptureWrongThread" "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN 999 "hipErrorUnknown" "unknown error";
}
