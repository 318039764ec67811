#![allow(unsafe_code)]
//! What programs ask for and this driver lacks: modules from files and in other forms than text, graphs. Each answers that it is not supported.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use crate::{
    abi::{Outcome, Status},
    gate::exports,
};

exports! {
    ["cuModuleLoad", 2000, Context]
    fn cuModuleLoad() |_call| { lacking() }

    ["cuModuleLoadDataEx", 2010, Context]
    fn cuModuleLoadDataEx() |_call| { lacking() }

    ["cuModuleGetGlobal", 3020, Context]
    fn cuModuleGetGlobal_v2() |_call| { lacking() }

    ["cuLibraryGetGlobal", 12000, Context]
    fn cuLibraryGetGlobal() |_call| { lacking() }

    ["cuStreamBeginCapture", 10010, Context]
    fn cuStreamBeginCapture_v2() |_call| { lacking() }

    ["cuMulticastCreate", 12010, Init]
    fn cuMulticastCreate() |_call| { lacking() }
}

const fn lacking() -> Outcome {
    Err(Status::NOT_SUPPORTED)
}
