//! `make fuzz TARGET=token`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(token);
