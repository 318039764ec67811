//! What only a device can show: T1 to T21, on the machine's own CUDA driver and its first device, with figures.
//!
//! ```sh
//! cargo test --release --test cuda_hardware -- --include-ignored --test-threads=1
//! ```
//!
//! | variable | what it does |
//! |---|---|
//! | `WHARFTEST_HARDWARE` | `required`: no driver or device is a failure; `emulated`: the same tests on the emulated driver, whose figures are marked as such |
//! | `WHARFTEST_REPORT` | the file for the report, in JSON; else `cuda_hardware.json` in the folder for temporary files of the target folder |
//! | `WHARFTEST_SOAK` | seconds that T19 lasts; 60 on a device, 0.3 on the emulated driver |
//! | `WHARF_LIBCUDA` | the driver's file, as for the crate |
//! | `UCX_WHEEL` | a folder with the package `libucx-cu12`, for T15 |
//!
//! Its tests are ignored unless they are asked for; then, without a device, each prints one line that says why it did not run. Speed is measured and reported, never asserted. The tests run one after the
//! other, whatever the harness says. `itself` runs the whole suite on the emulated driver, so that it is known to work before it meets a device.
//!
//! | file | holds |
//! |---|---|
//! | `suite` | which driver, how a test runs, what it says |
//! | `report` | the report |
//! | `raw` | the driver's functions, as they are exported |
//! | `device` | memory, streams, kernels; wharf on the same driver |
//! | `driver_state` | T1, T2, T3, T13 |
//! | `addresses` | T4, T5, T14 |
//! | `host_memory` | T6 |
//! | `dma_buf` | T12, T20 |
//! | `copies` | T7, T18, T19 |
//! | `order` | T16 |
//! | `bandwidth` | T8 |
//! | `latency` | T9, T10 |
//! | `processes` | T11 |
//! | `ucx` | T15 |
//! | `channels` | T21 |
//! | `questions` | T17 |

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod bandwidth;
mod channels;
mod copies;
mod device;
mod dma_buf;
mod driver_state;
mod host_memory;
mod itself;
mod latency;
mod order;
mod processes;
mod questions;
mod raw;
mod report;
mod suite;
mod ucx;

macro_rules! tests {
    ($($name:ident $id:literal $body:path;)*) => {$(
        #[test]
        #[ignore = "needs a CUDA device: --include-ignored where there is one"]
        fn $name() {
            suite::run($id, stringify!($name), $body);
        }
    )*
        /// Every test of the list, in its order.
        const ALL: &[&str] = &[$($id),*];
    };
}

tests! {
    t01_loader "T1" driver_state::loader;
    t02_device_attributes "T2" driver_state::attributes;
    t03_contexts "T3" driver_state::contexts;
    t04_memory_types "T4" addresses::memory_types;
    t05_ranges_and_numbers "T5" addresses::ranges_and_numbers;
    t06_host_registration "T6" host_memory::registration;
    t07_every_byte "T7" copies::every_byte;
    t08_bandwidth "T8" bandwidth::bandwidth;
    t09_costs_of_calls "T9" latency::costs;
    t10_completion "T10" latency::completion;
    t11_two_processes "T11" processes::two_processes;
    t12_dma_buf "T12" dma_buf::export;
    t13_sync_memops "T13" driver_state::sync_memops;
    t14_the_host_cannot_touch_it "T14" addresses::the_host_cannot_touch_it;
    t15_ucx "T15" ucx::baseline;
    t16_user_streams "T16" order::user_streams;
    t17_the_emulated_driver_answers_the_same "T17" questions::compared;
    t18_nothing_is_left "T18" copies::nothing_is_left;
    t19_two_runtimes "T19" copies::two_runtimes;
    t20_mapped_dma_buf "T20" dma_buf::mapped;
    t21_device_channels "T21" channels::kernels;
}

/// What a second process does.
type Part = fn(support::Parent);

/// By name: the test that started it names its part.
const PARTS: &[(&str, Part)] = &[
    ("T3 uninitialised", driver_state::uninitialised),
    ("T10 broken", latency::broken),
    ("T11 exporter", processes::exporter),
    ("T11 legacy", processes::legacy_exporter),
    ("T14 toucher", addresses::toucher),
    ("T17 questions", questions::answers),
    ("T18 forks", copies::forks),
];
