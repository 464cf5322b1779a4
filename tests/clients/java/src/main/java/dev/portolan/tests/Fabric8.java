package dev.portolan.tests;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.dsl.base.ResourceDefinitionContext;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Informers of fabric8, which watch by WebSocket, ask for bookmarks, and let the server end their watches. */
final class Fabric8 {
  private Fabric8() {}

  static Soaked configMaps(String namespace) {
    KubernetesClient client = client();
    Soaked soaked = new Soaked("fabric8", "configmaps", namespace);
    SharedIndexInformer<ConfigMap> informer =
        namespace.isEmpty()
            ? client.configMaps().inAnyNamespace().runnableInformer(0)
            : client.configMaps().inNamespace(namespace).runnableInformer(0);
    return run(soaked, informer);
  }

  static Soaked greetings() {
    KubernetesClient client = client();
    ResourceDefinitionContext kind =
        new ResourceDefinitionContext.Builder()
            .withGroup("example.com").withVersion("v1").withKind("Greeting").withPlural("greetings").withNamespaced(true).build();
    SharedIndexInformer<GenericKubernetesResource> informer =
        client.genericKubernetesResources(kind).inAnyNamespace().runnableInformer(0);
    return run(new Soaked("fabric8", "greetings", ""), informer);
  }

  /** Of a kubeconfig it reads a token, and not the file of one. */
  private static KubernetesClient client() {
    try {
      String kubeconfig = Files.readString(Path.of(System.getenv("KUBECONFIG")));
      Matcher file = Pattern.compile("tokenFile: *\"?([^\\s\"]+)").matcher(kubeconfig);
      Config config = Config.autoConfigure(null);
      if (file.find()) {
        Path token = Path.of(file.group(1));
        config.setOauthTokenProvider(
            () -> {
              try {
                return Files.readString(token).trim();
              } catch (IOException error) {
                throw new UncheckedIOException(error);
              }
            });
      }
      return new KubernetesClientBuilder().withConfig(config).build();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static <T extends HasMetadata> Soaked run(Soaked soaked, SharedIndexInformer<T> informer) {
    soaked.holds(() -> informer.getStore().list().stream().map(found -> item(found.getMetadata())).toList());
    informer.addEventHandler(
        new ResourceEventHandler<T>() {
          @Override
          public void onAdd(T found) {}

          @Override
          public void onUpdate(T before, T found) {}

          @Override
          public void onDelete(T found, boolean unknown) {
            ObjectMeta meta = found.getMetadata();
            soaked.deleted(meta.getNamespace(), meta.getName(), meta.getUid());
          }
        });
    // It lists again by itself after a 410; anything else is tried again too.
    informer.exceptionHandler(
        (started, error) -> {
          if (error instanceof WatcherException gone && gone.isHttpGone()) {
            soaked.expired(gone.getMessage());
          }
          return true;
        });
    informer.start();
    return soaked;
  }

  private static java.util.Map<String, Object> item(ObjectMeta meta) {
    return Soaked.item(meta.getNamespace(), meta.getName(), meta.getUid(), meta.getResourceVersion());
  }
}
