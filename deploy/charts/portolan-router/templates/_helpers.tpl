{{- define "portolan-router.labels" -}}
app.kubernetes.io/name: portolan-router
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: portolan
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Of routers alone, made when the cluster joined: the hub knows routers by their account there. */}}
{{- define "portolan-router.namespace" -}}
portolan-routers
{{- end }}

{{- define "portolan-router.ca" -}}
{{- $found := lookup "v1" "ConfigMap" "portolan-system" "portolan-ca" }}
{{- $ca := .Values.hub.ca | default (dig "data" "ca.crt" "" $found) }}
{{- required "hub.ca: the certificate of the hub's CA is needed to know the hub by. On the hub cluster: kubectl -n portolan-system get configmap portolan-ca -o jsonpath='{.data.ca\\.crt}' > ca.crt; then --set-file hub.ca=ca.crt" $ca }}
{{- end }}
