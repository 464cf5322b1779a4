//! `make fuzz TARGET=watch_frames`.
#![cfg_attr(feature = "libfuzzer", no_main)]

portolan_fuzz::target!(watch_frames);
