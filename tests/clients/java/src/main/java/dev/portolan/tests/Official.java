package dev.portolan.tests;

import io.kubernetes.client.informer.ResourceEventHandler;
import io.kubernetes.client.informer.SharedIndexInformer;
import io.kubernetes.client.informer.SharedInformerFactory;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.openapi.models.V1ConfigMapList;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.util.Config;
import java.io.IOException;
import java.io.UncheckedIOException;

/** Informers of the official Java client, their watches ended after seconds. */
final class Official {
  private static final int WATCH_SECONDS = 4;

  private Official() {}

  static Soaked configMaps(String namespace) {
    ApiClient client;
    try {
      client = Config.defaultClient();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    // What the informer insists on.
    client.setReadTimeout(0);
    CoreV1Api api = new CoreV1Api(client);
    SharedInformerFactory factory = new SharedInformerFactory(client);
    Soaked soaked = new Soaked("official without bookmarks", "configmaps", namespace);
    SharedIndexInformer<V1ConfigMap> informer =
        factory.sharedIndexInformerFor(
            parameters -> {
              if (!Boolean.TRUE.equals(parameters.watch)) {
                soaked.listed();
              }
              String version = parameters.resourceVersion;
              return namespace.isEmpty()
                  ? api.listConfigMapForAllNamespaces()
                      .resourceVersion(version).watch(parameters.watch).timeoutSeconds(WATCH_SECONDS).buildCall(null)
                  : api.listNamespacedConfigMap(namespace)
                      .resourceVersion(version).watch(parameters.watch).timeoutSeconds(WATCH_SECONDS).buildCall(null);
            },
            V1ConfigMap.class,
            V1ConfigMapList.class);
    soaked.holds(() -> informer.getIndexer().list().stream().map(found -> item(found.getMetadata())).toList());
    informer.addEventHandler(
        new ResourceEventHandler<V1ConfigMap>() {
          @Override
          public void onAdd(V1ConfigMap found) {}

          @Override
          public void onUpdate(V1ConfigMap before, V1ConfigMap found) {}

          @Override
          public void onDelete(V1ConfigMap found, boolean unknown) {
            V1ObjectMeta meta = found.getMetadata();
            soaked.deleted(meta.getNamespace(), meta.getName(), meta.getUid());
          }
        });
    factory.startAllRegisteredInformers();
    return soaked;
  }

  private static java.util.Map<String, Object> item(V1ObjectMeta meta) {
    return Soaked.item(meta.getNamespace(), meta.getName(), meta.getUid(), meta.getResourceVersion());
  }
}
