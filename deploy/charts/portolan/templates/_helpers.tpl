{{- define "portolan.labels" -}}
app.kubernetes.io/name: portolan-hub
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: portolan
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The namespace is part of the RBAC that portolanctl applies too. */}}
{{- define "portolan.namespace" -}}
{{- if ne .Release.Namespace "portolan-system" }}
{{- fail (printf "Portolan lives in namespace portolan-system, which its RBAC names: install it with --namespace portolan-system --create-namespace, not into %s" .Release.Namespace) }}
{{- end }}
{{- .Release.Namespace }}
{{- end }}
