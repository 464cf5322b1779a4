//! When a fault is in force.

use serde::{Deserialize, Serialize};

/// Hours of days. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveTime {
    /// From this time of day on, `HH:MM:SS`. Absent: from midnight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// To the end of this second of the day, `HH:MM:SS`; before startTime: on the next day, which counts as the day it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// 0 is Sunday. Absent: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days_of_week: Vec<i64>,
    /// 1 to 31. Absent: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days_of_month: Vec<i64>,
    /// 1 to 12. Absent: every month.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub months: Vec<i64>,
    /// Name of the time zone in IANA's database. Absent: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}
