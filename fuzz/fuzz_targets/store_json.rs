#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_fuzz::store_json::run(bytes));
