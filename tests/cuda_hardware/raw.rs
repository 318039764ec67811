#![allow(unsafe_code)]
//! The driver's functions as they are exported, for loops without wharf and for what wharf never does.
//!
//! # Safety
//! Each function's type is written from the public header. The library is never unloaded. The pointers that tests pass live through the call;
//! device addresses are the driver's to check, and what it reads or writes later the tests keep until then.

#![allow(non_snake_case)]

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt,
    path::Path,
    sync::OnceLock,
};

use libloading::Library;

#[path = "../emulated/stranger_cuda/functions.rs"]
mod functions;

use functions::cuda_functions;
pub(crate) use functions::{Access, Opaque, PoolProps, Prop};

/// What a call gives when the library lacks the function: no code of the driver's.
pub(crate) const MISSING: u32 = u32::MAX;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        struct Functions {
            $($name: Option<extern "C" fn($($type),*) -> u32>,)*
        }

        impl Functions {
            fn find(library: &Library) -> Self {
                Self {
                    // SAFETY: the type is the public header's, and the library stays loaded.
                    $($name: unsafe {
                        library.get::<extern "C" fn($($type),*) -> u32>(concat!(stringify!($name), "\0").as_bytes())
                    }
                    .ok()
                    .map(|found| *found),)*
                }
            }
        }

        #[allow(dead_code, clippy::too_many_arguments, reason = "the header's")]
        impl Raw {
            $(pub(crate) fn $name(&self, $($argument: $type),*) -> u32 {
                self.functions.$name.map_or(MISSING, |call| call($($argument),*))
            })*
        }
    };
}

cuda_functions!(functions);

/// A loaded driver.
pub(crate) struct Raw {
    library: Library,
    functions: Functions,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

/// Loads the driver of this process; initialises nothing. One process has one.
pub(crate) fn load(path: &Path) -> Result<&'static Raw, String> {
    static LOADED: OnceLock<Result<Raw, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: a driver's start does nothing that a program must prepare for.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            reason.unwrap_or_else(|| error.to_string())
        })?;
        let functions = Functions::find(&library);
        Ok(Raw { library, functions })
    });
    loaded.as_ref().map_err(Clone::clone)
}

impl Raw {
    /// The address of an exported name.
    pub(crate) fn address(&self, name: &str) -> Option<usize> {
        // SAFETY: the address alone is looked at.
        let found = unsafe { self.library.get::<*const c_void>(name.as_bytes()) };
        found.ok().map(|found| (*found).addr())
    }

    /// Whether the library exports it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.address(name).is_some()
    }

    /// What the driver calls a code.
    pub(crate) fn name(&self, code: u32) -> String {
        let mut text = std::ptr::null();
        match code {
            MISSING => "no such function".to_owned(),
            _ if self.cuGetErrorName(code, &mut text) != 0 || text.is_null() => code.to_string(),
            _ => {
                // SAFETY: a static string of the driver's.
                let text = unsafe { CStr::from_ptr(text) };
                format!("{code} {}", text.to_string_lossy())
            }
        }
    }

    /// Demands success.
    #[track_caller]
    pub(crate) fn ok(&self, code: u32) {
        assert!(code == 0, "the driver says {}", self.name(code));
    }

    /// One attribute of an address as a word, or the code.
    pub(crate) fn pointer(&self, attribute: u32, address: u64) -> Result<u64, u32> {
        let mut value = 0_u64;
        match self.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) {
            0 => Ok(value),
            code => Err(code),
        }
    }

    /// An attribute of the first device; 0 when the driver does not know it.
    pub(crate) fn device(&self, attribute: u32) -> i32 {
        let mut value = 0;
        match self.cuDeviceGetAttribute(&mut value, attribute, 0) {
            0 => value,
            _ => 0,
        }
    }

    /// A command to the emulated driver.
    pub(crate) fn control(&self, command: &str) -> String {
        type Control = extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
        // SAFETY: the emulated driver's one function of its own has this type.
        let call = unsafe { self.library.get::<Control>(b"wharf_emulated_control\0") };
        let call = call.expect("the emulated driver");
        let command = CString::new(command).expect("no zero");
        let mut answer = vec![0_u8; 1 << 16];
        let len = call(command.as_ptr(), answer.as_mut_ptr().cast(), answer.len());
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        let answer = answer.to_string_lossy().into_owned();
        assert!(len >= 0, "{command:?}: {answer}");
        answer
    }
}
