//! `make fuzz TARGET=json_list`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(json_list);
