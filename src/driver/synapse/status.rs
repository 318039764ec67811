//! What Synapse answers: `synStatus` as a newtype, so that codes which are not known here survive.

use std::fmt;

use crate::{
    driver::status::status,
    error::{ErrorKind, Result},
};

/// A `synStatus`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Status(pub(crate) i32);

/// Names, numbers, kinds and phrases; names and numbers are those of `synStatus` in `synapse_common_types.h`.
macro_rules! statuses {
    ($( $name:ident $header:literal = $code:literal, $kind:ident, $phrase:literal; )+) => {
        #[allow(dead_code, reason = "the names of the header, whether somebody compares with them or not")]
        impl Status {
            $( #[doc = concat!("`", $header, "`: ", $phrase, ".")]
            pub(crate) const $name: Self = Self($code); )+

            /// The name in the header, kind and phrase.
            const fn known(self) -> Option<(&'static str, ErrorKind, &'static str)> {
                match self.0 {
                    $( $code => Some(($header, ErrorKind::$kind, $phrase)), )+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS "synSuccess" = 0, Io, "no error";
    INVALID_ARGUMENT "synInvalidArgument" = 1, InvalidArgument, "an argument is not one that Synapse takes";
    CB_FULL "synCbFull" = 2, Exhausted, "the command buffer is full: wait for copies that are under way";
    OUT_OF_HOST_MEMORY "synOutOfHostMemory" = 3, Exhausted, "out of host memory";
    OUT_OF_DEVICE_MEMORY "synOutOfDeviceMemory" = 4, Exhausted, "out of device memory";
    OBJECT_ALREADY_INITIALIZED "synObjectAlreadyInitialized" = 5, InvalidArgument, "the object is there already";
    OBJECT_NOT_INITIALIZED "synObjectNotInitialized" = 6, InvalidArgument, "the object is not there";
    COMMAND_SUBMISSION_FAILURE "synCommandSubmissionFailure" = 7, Io, "the device's driver refused the submission";
    NO_DEVICE_FOUND "synNoDeviceFound" = 8, Unsupported, "there is no such device, or another process has it (hl-smi shows which)";
    DEVICE_TYPE_MISMATCH "synDeviceTypeMismatch" = 9, InvalidArgument, "the device is of another type";
    FAILED_TO_INITIALIZE_CB "synFailedToInitializeCb" = 10, Io, "a command buffer could not be made";
    FAILED_TO_FREE_CB "synFailedToFreeCb" = 11, Io, "a command buffer could not be freed";
    FAILED_TO_MAP_CB "synFailedToMapCb" = 12, Io, "a command buffer could not be mapped";
    FAILED_TO_UNMAP_CB "synFailedToUnmapCb" = 13, Io, "a command buffer could not be unmapped";
    FAILED_TO_ALLOCATE_DEVICE_MEMORY "synFailedToAllocateDeviceMemory" = 14, Exhausted, "device memory could not be allocated";
    FAILED_TO_FREE_DEVICE_MEMORY "synFailedToFreeDeviceMemory" = 15, InvalidArgument, "device memory could not be freed";
    NOT_ENOUGH_DEVICES "synFailedNotEnoughDevicesFound" = 16, Unsupported, "there are fewer devices than were asked for";
    DEVICE_RESET "synDeviceReset" = 17, DeviceLost, "the device was reset, and nothing on it goes on: this process has to end (dmesg says why)";
    UNSUPPORTED "synUnsupported" = 18, Unsupported, "this device or runtime does not have it";
    WRONG_PARAMS_FILE "synWrongParamsFile" = 19, Configuration, "a parameter file is wrong";
    DEVICE_ALREADY_ACQUIRED "synDeviceAlreadyAcquired" = 20, Exhausted, "this process has acquired a device already: use that one";
    NAME_IS_ALREADY_USED "synNameIsAlreadyUsed" = 21, InvalidArgument, "the name is in use";
    BUSY "synBusy" = 22, WouldBlock, "work is still under way";
    ALL_RESOURCES_TAKEN "synAllResourcesTaken" = 23, Exhausted, "all streams or events are taken";
    UNAVAILABLE "synUnavailable" = 24, Unsupported, "it is not available";
    INVALID_TENSOR_DIMENSIONS "synInvalidTensorDimensions" = 25, InvalidArgument, "a tensor's dimensions are wrong";
    FAIL "synFail" = 26, Io, "Synapse does not say what failed: its logs may (HABANA_LOGS names their folder)";
    OUT_OF_RESOURCES "synOutOfResources" = 27, Exhausted, "Synapse is out of resources";
    UNINITIALIZED "synUninitialized" = 28, Io, "Synapse is not initialised in this process";
    ALREADY_INITIALIZED "synAlreadyInitialized" = 29, Io, "Synapse is initialised already";
    FAILED_SECTION_VALIDATION "synFailedSectionValidation" = 30, InvalidArgument, "sections do not match";
    SYNAPSE_TERMINATED "synSynapseTerminated" = 31, DeviceLost, "Synapse ends itself after a fatal error: this process has to end";
    ASSERT_ASYNC "synAssertAsync" = 32, DeviceLost, "a kernel's assertion failed, and the device is lost";
    INVALID_EVENT_HANDLE "synInvalidEventHandle" = 33, InvalidArgument, "the event is not valid";
    MAPPING_NOT_FOUND "synMappingNotFound" = 34, InvalidArgument, "the host memory is not mapped for the device: map it by synHostMap first";
    FAILED_DYNAMIC_PATCHING "synFailedDynamicPatching" = 35, Io, "patching failed";
    FAILED_STATIC_PATCHING "synFailedStaticPatching" = 36, Io, "patching failed";
    FAILED_TO_SUBMIT_WORKLOAD "synFailedToSubmitWorkload" = 37, Io, "the device did not take the work";
    INVALID_SECTIONS_DEFINITION "synInvalidSectionsDefinition" = 38, InvalidArgument, "sections are wrong";
    INVALID_TENSOR_PROPERTIES "synInvalidTensorProperties" = 39, InvalidArgument, "a tensor's properties are wrong";
    FAIL_HCCL "synFailHccl" = 40, Io, "the collective library failed";
    FAILED_TO_COLLECT_TIME "synFailedToCollectTime" = 41, Io, "times could not be collected";
    TIMEOUT "synTimeout" = 42, DeadlineExceeded, "the device's driver waited in vain";
    RESOURCE_BAD_USAGE "synResourceBadUsage" = 43, InvalidArgument, "a resource was used in a wrong way";
}

impl Status {
    /// For a query: whether all is done.
    /// Errors: as of [`Status::check`], but [`Status::BUSY`] is no error.
    pub(crate) fn done(self, call: &str) -> Result<bool> {
        match self {
            Self::BUSY => Ok(false),
            status => status.check(call).map(|()| true),
        }
    }
}

status!(Status, success: Self::SUCCESS);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, _, phrase)) => write!(f, "{phrase} ({name}, {})", self.0),
            None => write!(f, "synStatus {}", self.0),
        }
    }
}
