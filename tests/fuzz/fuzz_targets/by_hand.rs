#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wharf::fuzz::decode("by_hand", bytes));
