//! A test again, alone in a process of its own, with the libraries that it names.

pub(crate) use crate::support::is_alone as is_child;
use crate::support::{again, passes};

/// Runs this program for one test with more variables, and demands success. The variables that name libraries are unset unless given.
pub(crate) fn child_with(test: &str, variables: &[(&str, &str)]) {
    let mut command = again(test);
    for library in ["WHARF_LIBCUDA", "WHARF_LIBSYNAPSE", "WHARF_LIBSCAL"] {
        command.env_remove(library);
    }
    passes(command.envs(variables.iter().copied()));
}
