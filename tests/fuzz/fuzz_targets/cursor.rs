//! `make fuzz TARGET=cursor`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(cursor);
