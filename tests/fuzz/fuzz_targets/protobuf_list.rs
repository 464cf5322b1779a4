//! `make fuzz TARGET=protobuf_list`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(protobuf_list);
