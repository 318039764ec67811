//! Loading a vendor's library and finding its functions.
//!
//! # Safety
//! A library is opened once and never closed, so a function found in it stays callable until the process ends. That a function has the
//! declared signature is what its exported name promises: vendors give a changed signature a new name (`_v2`), and the tables ask for
//! exact names. A library that the user names (by option or variable) is trusted to be what it is said to be, as is everything that is
//! loaded into a process; what a wrong one can be told by, a missing symbol, is.
#![allow(unsafe_code)]

use std::{
    error::Error as StdError,
    ffi::{OsStr, OsString, c_void},
    fmt,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, ErrorKind};

/// `RTLD_NOLOAD` of the C library's `dlfcn.h`: find what is loaded already, load nothing.
const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;

/// Where a library is looked for: the path given by the program, else the one in the variable, else the names.
///
/// Who gives a path means that file: the others are not tried then. An empty variable counts as not set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    /// What it is, for the error: "the CUDA driver".
    pub(crate) what: &'static str,
    /// The path that the program gave.
    pub(crate) given: Option<&'a Path>,
    /// The variable that may hold a path.
    pub(crate) variable: &'static str,
    /// Sonames with their version, the preferred first; searched for as the loader does.
    pub(crate) names: &'static [&'static str],
}

impl Search<'_> {
    /// The file that somebody asked for, if anybody did.
    pub(crate) fn explicit(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(self.variable).filter(|value| !value.is_empty());
        self.given
            .map(Path::to_owned)
            .or_else(|| variable().map(PathBuf::from))
    }

    /// Loads the library. It stays loaded. May take milliseconds: the library's constructors run.
    /// Errors: [`Absent`]: all that was tried, with the loader's words.
    pub(crate) fn open(&self) -> Result<Library, Absent> {
        self.find(RTLD_NOW | RTLD_LOCAL)
    }

    /// The library if this process has it already, because somebody else loaded it. Loads nothing.
    pub(crate) fn resident(&self) -> Option<Library> {
        self.find(RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD).ok()
    }

    fn find(&self, flags: i32) -> Result<Library, Absent> {
        let candidates: Vec<OsString> = match self.explicit() {
            Some(path) => vec![path.into()],
            None => self.names.iter().map(OsString::from).collect(),
        };
        let mut absent = Absent::new(self.what);
        for name in candidates {
            match Library::open(&name, flags) {
                Ok(library) => return Ok(library),
                Err(why) => absent
                    .tried
                    .push((name.to_string_lossy().into_owned(), why)),
            }
        }
        Err(absent)
    }
}

/// A library that is loaded for the rest of the process's life.
#[derive(Clone)]
pub(crate) struct Library {
    opened: &'static Opened,
    name: String,
}

impl Library {
    fn open(name: &OsStr, flags: i32) -> Result<Self, String> {
        // SAFETY: running a vendor library's constructors is what the caller asked for by naming it; see the chapter above.
        let opened = unsafe { Opened::open(Some(name), flags) };
        let opened = opened.map_err(|error| words(&error))?;
        Ok(Self {
            // Never unloaded.
            opened: Box::leak(Box::new(opened)),
            name: name.to_string_lossy().into_owned(),
        })
    }

    /// The name by which it was found.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The address of an exported function.
    pub(crate) fn find(&self, symbol: &str) -> Option<NonNull<c_void>> {
        // SAFETY: the address is not called here; who does gives it the type that belongs to the name.
        let found = unsafe { self.opened.get::<*mut c_void>(symbol) }.ok()?;
        NonNull::new(found.as_raw_ptr())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Library").field(&self.name).finish()
    }
}

/// That a library is not there, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    /// What was looked for.
    pub(crate) what: &'static str,
    /// What was tried, and what the loader or the system said to it.
    pub(crate) tried: Vec<(String, String)>,
}

impl Absent {
    /// Nothing tried yet.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            tried: Vec::new(),
        }
    }

    /// That one of these device files is there: a look that loads and initialises nothing.
    pub(super) fn unless_any(what: &'static str, files: &[&str]) -> Result<(), Self> {
        let mut absent = Self::new(what);
        for (index, path) in files.iter().enumerate() {
            match std::fs::metadata(path) {
                Ok(_) => return Ok(()),
                // The first is the usual one; the others would only lengthen the text.
                Err(error) if index == 0 => {
                    absent.tried.push(((*path).to_owned(), error.to_string()));
                }
                Err(_) => {}
            }
        }
        Err(absent)
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not here: ", self.what)?;
        for (index, (name, why)) in self.tried.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            // The loader's words mostly begin with the name.
            if why.starts_with(name.as_str()) {
                write!(f, "{separator}{why}")?;
            } else {
                write!(f, "{separator}{name}: {why}")?;
            }
        }
        Ok(())
    }
}

impl StdError for Absent {}

impl From<Absent> for Error {
    fn from(absent: Absent) -> Self {
        Self::new(ErrorKind::Unsupported, absent.to_string())
    }
}

/// A required function that a library does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingSymbol {
    /// Its exported name.
    pub(crate) name: &'static str,
    /// The version that brought it, as the table numbers versions.
    pub(crate) since: u32,
}

/// The first of them, as `name` has each, and how many more there are.
pub(super) fn listed(missing: &[MissingSymbol], name: impl Fn(&MissingSymbol) -> String) -> String {
    /// More than these say nothing new.
    const NAMED: usize = 4;
    let names: Vec<String> = missing.iter().take(NAMED).map(name).collect();
    let more = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.join(", ") + &more
}

/// The names of all of them.
pub(super) fn names(missing: &[MissingSymbol]) -> String {
    let names: Vec<&str> = missing.iter().map(|symbol| symbol.name).collect();
    names.join(", ")
}

/// The loader's own words. `libloading` keeps them as the source of its error.
fn words(error: &libloading::Error) -> String {
    let text = match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.trim().to_owned()
}

/// Declares a table of functions by their exact exported names: the required ones as functions, the optional ones as `Option`.
///
/// `since` is the version that brought the function with this signature, in the library's own numbering.
macro_rules! symbols {
    (
        $(#[$meta:meta])*
        struct $Table:ident;
        required { $( $name:ident($($type:ty),* $(,)?) $(-> $result:ty)?, since $since:literal; )* }
        optional { $( $oname:ident($($otype:ty),* $(,)?) $(-> $oresult:ty)?, since $osince:literal; )* }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "the names that the library exports")]
        #[derive(Clone, Copy)]
        pub(super) struct $Table {
            $( pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?, )*
            $( pub(super) $oname: Option<unsafe extern "C" fn($($otype),*) $(-> $oresult)?>, )*
        }

        impl $Table {
            /// Every name with the version that brought it.
            #[allow(dead_code, reason = "CUDA alone says which version a function needs")]
            pub(super) const SINCE: &'static [(&'static str, u32)] = &[
                $( (stringify!($name), $since), )*
                $( (stringify!($oname), $osince), )*
            ];

            /// Looks every function up.
            /// Errors: all required functions that `find` does not find.
            ///
            /// # Safety
            /// What `find` returns for a name is a function with the signature that the table declares, callable for ever.
            #[allow(non_snake_case, reason = "the names that the library exports")]
            pub(super) unsafe fn resolve(
                find: &dyn Fn(&'static str, u32) -> Option<::std::ptr::NonNull<::std::ffi::c_void>>,
            ) -> Result<Self, Vec<$crate::driver::library::MissingSymbol>> {
                use $crate::driver::library::{MissingSymbol, function};
                $( let $name = find(stringify!($name), $since); )*
                let mut missing = Vec::new();
                $( if $name.is_none() {
                    missing.push(MissingSymbol { name: stringify!($name), since: $since });
                } )*
                let ($(Some($name),)*) = ($($name,)*) else { return Err(missing) };
                Ok(Self {
                    // SAFETY: the caller vouches for the signature.
                    $( $name: unsafe { function($name) }, )*
                    // SAFETY: as above.
                    $( $oname: find(stringify!($oname), $osince).map(|found| unsafe { function(found) }), )*
                })
            }
        }

        impl ::std::fmt::Debug for $Table {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut absent = f.debug_struct(stringify!($Table));
                $( if self.$oname.is_none() { absent.field(stringify!($oname), &"absent"); } )*
                absent.finish_non_exhaustive()
            }
        }
    };
}
pub(super) use symbols;

/// An address as a function of type `F`.
///
/// # Safety
/// `F` is a function pointer type, and the function at the address has its signature.
pub(super) unsafe fn function<F: Copy>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: both are one pointer wide, and the caller vouches for the rest.
    unsafe { std::mem::transmute_copy(&address) }
}
